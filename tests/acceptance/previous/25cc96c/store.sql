PRAGMA application_id = 1835365484;
BEGIN TRANSACTION;
CREATE TABLE _sqlx_migrations (
    version BIGINT PRIMARY KEY,
    description TEXT NOT NULL,
    installed_on TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    success BOOLEAN NOT NULL,
    checksum BLOB NOT NULL,
    execution_time BIGINT NOT NULL
);
INSERT INTO "_sqlx_migrations" VALUES(1,'coordination','2026-11-25 08:29:09',1,X'AAD353E2F89DB661B93E055D4CF0D3FA9EC5513102CB2E27681F47602185BA27C2E4121375D535FA614E1FBC2B1132F9',769916);
INSERT INTO "_sqlx_migrations" VALUES(2,'ownership','2026-11-25 08:29:09',1,X'34356ED528732E1DA7356221D96DC57E6AC0DE421E18A0627E7A7411BF00696E487FC4AC58812F3561D6410A1BA166D4',500120);
INSERT INTO "_sqlx_migrations" VALUES(3,'history','2026-11-25 08:29:09',1,X'946A6434BE25A81941A111E1CB47EEC6C8116A650CC5120A6569EC67585A2F891A18AA104B287C46DD30F1787B37F7FC',642547);
CREATE TABLE audit (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    uid TEXT NOT NULL,
    generation INTEGER NOT NULL,
    actor TEXT NOT NULL,
    what TEXT NOT NULL,
    detail TEXT NOT NULL
) STRICT;
INSERT INTO "audit" VALUES(1,'2026-11-25T08:29:09.182705688Z','tests','owned','01a211d2-acbc-71ff-98fc-7b1177b24bfd',0,'root on vm (process 29865)','claimed','for team-storage (contact: owners@example.org)');
INSERT INTO "audit" VALUES(2,'2026-11-25T08:29:09.191820809Z','tests','booted','01a211d2-acc7-73af-ad4b-e09cf6e8c089',0,'root on vm (process 29865)','enqueued','server node2, policy Enforced, priority 0');
INSERT INTO "audit" VALUES(3,'2026-11-25T08:29:09.195670503Z','tests','off','01a211d2-acca-766f-9637-d34b5be3c4a5',0,'root on vm (process 29865)','enqueued','server node1, reason "BIOS 2.19", ticket OPS-1, policy Enforced, priority 5, power Off');
INSERT INTO "audit" VALUES(4,'2026-11-25T08:29:09.198304582Z','tests','restart','01a211d2-accc-763e-b84e-0964051f129e',0,'root on vm (process 29865)','enqueued','server node4, policy Enforced, priority 0, operation ForceRestart');
INSERT INTO "audit" VALUES(5,'2026-11-25T08:29:09.200468021Z','tests','owned','01a211d2-acca-766f-9637-d34cc465f7c0',0,'team-storage (root on vm (process 29865))','approved','everything that is asked of the claim');
INSERT INTO "audit" VALUES(6,'2026-11-25T08:29:09.201629740Z','tests','booted','01a211d2-acc7-73af-ad4b-e09cf6e8c089',1,'root on vm (process 29865)','admitted','');
INSERT INTO "audit" VALUES(7,'2026-11-25T08:29:09.204073334Z','tests','off','01a211d2-acca-766f-9637-d34b5be3c4a5',1,'root on vm (process 29865)','admitted','');
INSERT INTO "audit" VALUES(8,'2026-11-25T08:29:09.211304733Z','tests','restart','01a211d2-accc-763e-b84e-0964051f129e',1,'root on vm (process 29865)','admitted','');
INSERT INTO "audit" VALUES(9,'2026-11-25T08:29:09.226126458Z','tests','approved','01a211d2-ace8-7638-bf8f-7e8750ff8f17',0,'root on vm (process 29865)','enqueued','server node3, policy OwnerApproval, priority 0');
INSERT INTO "audit" VALUES(10,'2026-11-25T08:29:09.233367565Z','tests','approved','01a211d2-ace8-7638-bf8f-7e8750ff8f17',1,'root on vm (process 29865)','admitted','approval 01a211d2-acca-766f-9637-d34cc465f7c0 of everything, by team-storage (root on vm (process 29865))');
INSERT INTO "audit" VALUES(11,'2026-11-25T08:29:09.234936248Z','tests','booted','01a211d2-acc7-73af-ad4b-e09cf6e8c089',1,'root on vm (process 29865)','prepared','');
INSERT INTO "audit" VALUES(12,'2026-11-25T08:29:09.267446941Z','tests','approved','01a211d2-ace8-7638-bf8f-7e8750ff8f17',1,'root on vm (process 29865)','prepared','');
INSERT INTO "audit" VALUES(13,'2026-11-25T08:29:09.272490467Z','tests','booted.boot','01a211d2-ad18-76f3-b013-4fc13c06aa87',0,'root on vm (process 29865)','enqueued','server node2, reason "boot configuration pxe", policy Enforced, priority 0, power On, boot pxe');
INSERT INTO "audit" VALUES(14,'2026-11-25T08:29:09.274690423Z','tests','restart','01a211d2-accc-763e-b84e-0964051f129e',1,'root on vm (process 29865)','prepared','');
INSERT INTO "audit" VALUES(15,'2026-11-25T08:29:09.281353985Z','tests','booted.boot','01a211d2-ad18-76f3-b013-4fc13c06aa87',2,'root on vm (process 29865)','admitted','');
INSERT INTO "audit" VALUES(16,'2026-11-25T08:29:09.376862130Z','tests','off','01a211d2-acca-766f-9637-d34b5be3c4a5',1,'root on vm (process 29865)','prepared','');
INSERT INTO "audit" VALUES(17,'2026-11-25T08:29:09.525412530Z','tests','booted.boot','01a211d2-ad18-76f3-b013-4fc13c06aa87',2,'root on vm (process 29865)','prepared','');
CREATE TABLE bindings (
    server TEXT PRIMARY KEY,
    lock_key TEXT NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO "bindings" VALUES('team-storage/node1','fac8de32-ec22-5648-81c5-0663a81eab11');
INSERT INTO "bindings" VALUES('team-storage/node2','5d89e0d5-fe5b-59ea-a46d-9aa63a5ec838');
INSERT INTO "bindings" VALUES('team-storage/node3','e17f992b-1218-5f23-9051-46194b738443');
INSERT INTO "bindings" VALUES('team-storage/node4','24dca4db-8d6b-5dcc-a14b-0f465d6d14ef');
CREATE TABLE leases (
    runner_id TEXT PRIMARY KEY,
    until TEXT NOT NULL,
    runner TEXT NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO "leases" VALUES('e8f69151-5088-4314-abad-db59c7a0ef92','2026-11-25T08:29:09.534908003Z','{"id":"e8f69151-5088-4314-abad-db59c7a0ef92","user":"root","host":"vm","pid":29865,"process":"00000000-0000-0000-0000-000000000000/pid:[4026531836]/29865/3601368","run":null,"url":null,"commit":null}');
CREATE TABLE locks (
    lock_key TEXT PRIMARY KEY,
    generation INTEGER NOT NULL,
    last_ticket INTEGER NOT NULL,
    slot_uid TEXT,
    slot_since TEXT,
    slot_acting TEXT,
    revision INTEGER NOT NULL UNIQUE
, ownership TEXT) STRICT, WITHOUT ROWID;
INSERT INTO "locks" VALUES('24dca4db-8d6b-5dcc-a14b-0f465d6d14ef',1,1,NULL,NULL,NULL,30,NULL);
INSERT INTO "locks" VALUES('5d89e0d5-fe5b-59ea-a46d-9aa63a5ec838',2,2,'01a211d2-acc7-73af-ad4b-e09cf6e8c089','2026-11-25T08:29:09.201629740Z',NULL,47,NULL);
INSERT INTO "locks" VALUES('e17f992b-1218-5f23-9051-46194b738443',1,1,'01a211d2-ace8-7638-bf8f-7e8750ff8f17','2026-11-25T08:29:09.233367565Z',NULL,28,'{"claim":{"uid":"01a211d2-acbc-71ff-98fc-7b1177b24bfd","id":"tests/owned","owner":"team-storage","contact":"owners@example.org","server":"node3","since":"2026-11-25T08:29:09.182705688Z","by":"root on vm (process 29865)"},"approvals":[{"uid":"01a211d2-acca-766f-9637-d34cc465f7c0","scope":"all","not_before":null,"expires":null,"at":"2026-11-25T08:29:09.200468021Z","by":"team-storage (root on vm (process 29865))","used_by":null}]}');
INSERT INTO "locks" VALUES('fac8de32-ec22-5648-81c5-0663a81eab11',1,1,'01a211d2-acca-766f-9637-d34b5be3c4a5','2026-11-25T08:29:09.204073334Z',NULL,38,NULL);
CREATE TABLE maintenances (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    uid TEXT NOT NULL UNIQUE,
    lock_key TEXT NOT NULL REFERENCES locks (lock_key),
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    active INTEGER NOT NULL,
    runner TEXT,
    body TEXT NOT NULL
, ended_at TEXT) STRICT;
INSERT INTO "maintenances" VALUES(1,'01a211d2-acc7-73af-ad4b-e09cf6e8c089','5d89e0d5-fe5b-59ea-a46d-9aa63a5ec838','tests','booted',1,NULL,'{"uid":"01a211d2-acc7-73af-ad4b-e09cf6e8c089","id":"tests/booted","lock_key":"5d89e0d5-fe5b-59ea-a46d-9aa63a5ec838","owner":"team-storage","spec":{"kind":"Maintenance","server":"node2","parent":null,"policy":"Enforced","require_claim":false,"escalate_after":null,"always_perform":false,"reason":null,"ticket":null,"priority":0,"window":null,"server_power":null,"operation":null,"boot":null,"complete_when":null,"expires_after":null,"hold_place_for":{"secs":900,"nanos":0},"triggers":{}},"digest":"31a480ab74d0bf74a78f48166231b27f","ticket_number":1,"requested_at":"2026-11-25T08:29:09.191820809Z","requester":{"id":"e8f69151-5088-4314-abad-db59c7a0ef92","user":"root","host":"vm","pid":29865,"process":"00000000-0000-0000-0000-000000000000/pid:[4026531836]/29865/3601368","run":null,"url":null,"commit":null},"admitted_at":"2026-11-25T08:29:09.20162974Z","closes_at":null,"started_at":"2026-11-25T08:29:09.234936248Z","phase":{"InMaintenance":{"since":"2026-11-25T08:29:09.234936248Z"}},"prior":{"power":"On","boot":{"enabled":"Disabled","target":"None","mode":"UEFI","http_boot_uri":null},"media":[{"slot":"/redfish/v1/Systems/1/VirtualMedia/Cd","media_types":["CD","DVD"],"image":null,"inserted":false,"write_protected":true},{"slot":"/redfish/v1/Systems/1/VirtualMedia/UsbStick","media_types":["USBStick"],"image":null,"inserted":false,"write_protected":true}],"last_reset":"2026-11-25T08:29:08.722Z","recorded_at":"2026-11-25T08:29:09.22117584Z"},"booted":false,"outcome":null,"last_power":"On","attachment":null,"generation":1,"calls_until":null,"detached_at":"2026-11-25T08:29:09.245723415Z","keeps_place":false}',NULL);
INSERT INTO "maintenances" VALUES(2,'01a211d2-acca-766f-9637-d34b5be3c4a5','fac8de32-ec22-5648-81c5-0663a81eab11','tests','off',1,NULL,'{"uid":"01a211d2-acca-766f-9637-d34b5be3c4a5","id":"tests/off","lock_key":"fac8de32-ec22-5648-81c5-0663a81eab11","owner":"team-storage","spec":{"kind":"Maintenance","server":"node1","parent":null,"policy":"Enforced","require_claim":false,"escalate_after":null,"always_perform":false,"reason":"BIOS 2.19","ticket":"OPS-1","priority":5,"window":null,"server_power":"Off","operation":null,"boot":null,"complete_when":null,"expires_after":null,"hold_place_for":{"secs":900,"nanos":0},"triggers":{}},"digest":"2b65c845c535294d1d2cd822bf9c135d","ticket_number":1,"requested_at":"2026-11-25T08:29:09.195670503Z","requester":{"id":"e8f69151-5088-4314-abad-db59c7a0ef92","user":"root","host":"vm","pid":29865,"process":"00000000-0000-0000-0000-000000000000/pid:[4026531836]/29865/3601368","run":null,"url":null,"commit":null},"admitted_at":"2026-11-25T08:29:09.204073334Z","closes_at":null,"started_at":"2026-11-25T08:29:09.37686213Z","phase":{"InMaintenance":{"since":"2026-11-25T08:29:09.37686213Z"}},"prior":{"power":"On","boot":{"enabled":"Disabled","target":"None","mode":"UEFI","http_boot_uri":null},"media":[{"slot":"/redfish/v1/Systems/1/VirtualMedia/Cd","media_types":["CD","DVD"],"image":null,"inserted":false,"write_protected":true},{"slot":"/redfish/v1/Systems/1/VirtualMedia/UsbStick","media_types":["USBStick"],"image":null,"inserted":false,"write_protected":true}],"last_reset":"2026-11-25T08:29:08.721Z","recorded_at":"2026-11-25T08:29:09.230846504Z"},"booted":false,"outcome":null,"last_power":"On","attachment":null,"generation":1,"calls_until":null,"detached_at":"2026-11-25T08:29:09.378828138Z","keeps_place":false}',NULL);
INSERT INTO "maintenances" VALUES(3,'01a211d2-accc-763e-b84e-0964051f129e','24dca4db-8d6b-5dcc-a14b-0f465d6d14ef','tests','restart',1,NULL,'{"uid":"01a211d2-accc-763e-b84e-0964051f129e","id":"tests/restart","lock_key":"24dca4db-8d6b-5dcc-a14b-0f465d6d14ef","owner":"team-storage","spec":{"kind":"Operation","server":"node4","parent":null,"policy":"Enforced","require_claim":false,"escalate_after":null,"always_perform":false,"reason":null,"ticket":null,"priority":0,"window":null,"server_power":null,"operation":{"reset":"ForceRestart","when_off":"skip","proof":"power"},"boot":null,"complete_when":null,"expires_after":null,"hold_place_for":{"secs":900,"nanos":0},"triggers":{}},"digest":"7200aad0732a2e9f82c080f533a98d3c","ticket_number":1,"requested_at":"2026-11-25T08:29:09.198304582Z","requester":{"id":"e8f69151-5088-4314-abad-db59c7a0ef92","user":"root","host":"vm","pid":29865,"process":"00000000-0000-0000-0000-000000000000/pid:[4026531836]/29865/3601368","run":null,"url":null,"commit":null},"admitted_at":"2026-11-25T08:29:09.211304733Z","closes_at":null,"started_at":"2026-11-25T08:29:09.274690423Z","phase":{"InMaintenance":{"since":"2026-11-25T08:29:09.274690423Z"}},"prior":{"power":"On","boot":{"enabled":"Disabled","target":"None","mode":"UEFI","http_boot_uri":null},"media":[{"slot":"/redfish/v1/Systems/1/VirtualMedia/Cd","media_types":["CD","DVD"],"image":null,"inserted":false,"write_protected":true},{"slot":"/redfish/v1/Systems/1/VirtualMedia/UsbStick","media_types":["USBStick"],"image":null,"inserted":false,"write_protected":true}],"last_reset":"2026-11-25T08:29:08.722Z","recorded_at":"2026-11-25T08:29:09.23214612Z"},"booted":false,"outcome":"Proven","last_power":"On","attachment":null,"generation":1,"calls_until":null,"detached_at":"2026-11-25T08:29:09.279179331Z","keeps_place":false}',NULL);
INSERT INTO "maintenances" VALUES(8,'01a211d2-ace8-7638-bf8f-7e8750ff8f17','e17f992b-1218-5f23-9051-46194b738443','tests','approved',1,NULL,'{"uid":"01a211d2-ace8-7638-bf8f-7e8750ff8f17","id":"tests/approved","lock_key":"e17f992b-1218-5f23-9051-46194b738443","owner":"team-storage","spec":{"kind":"Maintenance","server":"node3","parent":null,"policy":"OwnerApproval","require_claim":false,"escalate_after":null,"always_perform":false,"reason":null,"ticket":null,"priority":0,"window":null,"server_power":null,"operation":null,"boot":null,"complete_when":null,"expires_after":null,"hold_place_for":{"secs":900,"nanos":0},"triggers":{}},"digest":"cea958700d656a583831510b428229ee","ticket_number":1,"requested_at":"2026-11-25T08:29:09.226126458Z","requester":{"id":"e8f69151-5088-4314-abad-db59c7a0ef92","user":"root","host":"vm","pid":29865,"process":"00000000-0000-0000-0000-000000000000/pid:[4026531836]/29865/3601368","run":null,"url":null,"commit":null},"admitted_at":"2026-11-25T08:29:09.233367565Z","closes_at":null,"started_at":"2026-11-25T08:29:09.267446941Z","phase":{"InMaintenance":{"since":"2026-11-25T08:29:09.267446941Z"}},"prior":{"power":"On","boot":{"enabled":"Disabled","target":"None","mode":"UEFI","http_boot_uri":null},"media":[{"slot":"/redfish/v1/Systems/1/VirtualMedia/Cd","media_types":["CD","DVD"],"image":null,"inserted":false,"write_protected":true},{"slot":"/redfish/v1/Systems/1/VirtualMedia/UsbStick","media_types":["USBStick"],"image":null,"inserted":false,"write_protected":true}],"last_reset":"2026-11-25T08:29:08.722Z","recorded_at":"2026-11-25T08:29:09.246770117Z"},"booted":false,"outcome":null,"last_power":"On","attachment":null,"generation":1,"calls_until":null,"detached_at":"2026-11-25T08:29:09.273626402Z","keeps_place":false}',NULL);
INSERT INTO "maintenances" VALUES(25,'01a211d2-ad18-76f3-b013-4fc13c06aa87','5d89e0d5-fe5b-59ea-a46d-9aa63a5ec838','tests','booted.boot',1,NULL,'{"uid":"01a211d2-ad18-76f3-b013-4fc13c06aa87","id":"tests/booted.boot","lock_key":"5d89e0d5-fe5b-59ea-a46d-9aa63a5ec838","owner":"team-storage","spec":{"kind":"BootConfiguration","server":"node2","parent":"01a211d2-acc7-73af-ad4b-e09cf6e8c089","policy":"Enforced","require_claim":false,"escalate_after":null,"always_perform":false,"reason":"boot configuration pxe","ticket":null,"priority":0,"window":null,"server_power":"On","operation":null,"boot":{"method":"pxe","image":null,"image_sha256":null,"once":true,"boot_mode":null,"ready_when":null},"complete_when":null,"expires_after":null,"hold_place_for":{"secs":900,"nanos":0},"triggers":{}},"digest":"011388120e3c67616cd158ed7e11a96b","ticket_number":2,"requested_at":"2026-11-25T08:29:09.272490467Z","requester":{"id":"e8f69151-5088-4314-abad-db59c7a0ef92","user":"root","host":"vm","pid":29865,"process":"00000000-0000-0000-0000-000000000000/pid:[4026531836]/29865/3601368","run":null,"url":null,"commit":null},"admitted_at":"2026-11-25T08:29:09.281353985Z","closes_at":null,"started_at":"2026-11-25T08:29:09.52541253Z","phase":{"InMaintenance":{"since":"2026-11-25T08:29:09.52541253Z"}},"prior":{"power":"On","boot":{"enabled":"Disabled","target":"None","mode":"UEFI","http_boot_uri":null},"media":[{"slot":"/redfish/v1/Systems/1/VirtualMedia/Cd","media_types":["CD","DVD"],"image":null,"inserted":false,"write_protected":true},{"slot":"/redfish/v1/Systems/1/VirtualMedia/UsbStick","media_types":["USBStick"],"image":null,"inserted":false,"write_protected":true}],"last_reset":"2026-11-25T08:29:08.722Z","recorded_at":"2026-11-25T08:29:09.288276598Z"},"booted":true,"outcome":null,"last_power":"On","attachment":null,"generation":2,"calls_until":null,"detached_at":"2026-11-25T08:29:09.527466517Z","keeps_place":false}',NULL);
CREATE TABLE meta (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO "meta" VALUES('store_id','7cd238f1a87e68d820e6045f540a120a');
CREATE UNIQUE INDEX maintenances_active_name ON maintenances (namespace, name) WHERE active = 1;
CREATE INDEX maintenances_active_key ON maintenances (lock_key) WHERE active = 1;
CREATE INDEX maintenances_active_runner ON maintenances (runner) WHERE active = 1;
CREATE INDEX maintenances_name ON maintenances (namespace, name, id);
CREATE INDEX audit_name ON audit (namespace, name, id);
CREATE INDEX locks_owned ON locks (lock_key) WHERE ownership IS NOT NULL;
CREATE INDEX maintenances_ended ON maintenances (ended_at) WHERE active = 0;
CREATE INDEX audit_at ON audit (at);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('audit',17);
INSERT INTO "sqlite_sequence" VALUES('maintenances',45);
COMMIT;
