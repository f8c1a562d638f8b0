//! The session service.

use std::sync::Arc;

use hyper::header;
use serde_json::{Value, json};

use super::reply::{collection, resource};
use super::systems::timestamp;
use super::{Incoming, Message, Reply, access};
use crate::bmc::{Bmc, Caller, Privilege, Session};

const SESSIONS: &str = "/redfish/v1/SessionService/Sessions";

pub(crate) fn service(bmc: &Bmc) -> Value {
    let mut service = resource(
        "/redfish/v1/SessionService",
        "#SessionService.v1_1_9.SessionService",
        "SessionService",
        "Session Service",
    );
    // The schema allows 30 seconds to a day; the simulator's own limit can be shorter.
    let timeout = bmc.personality.sessions.timeout.as_secs().clamp(30, 86_400);
    service["ServiceEnabled"] = true.into();
    service["SessionTimeout"] = timeout.into();
    service["Status"] = json!({ "State": "Enabled", "Health": "OK" });
    service["Sessions"] = json!({ "@odata.id": SESSIONS });
    service
}

pub(crate) fn list(bmc: &Bmc) -> Value {
    let open = bmc.sessions.list(&bmc.personality.sessions);
    collection(
        SESSIONS,
        "#SessionCollection.SessionCollection",
        "Session Collection",
        open.iter().map(|session| format!("{SESSIONS}/{}", session.id)),
    )
}

fn show(session: &Session) -> Value {
    let mut value =
        resource(&format!("{SESSIONS}/{}", session.id), "#Session.v1_7_0.Session", &session.id, "User Session");
    value["UserName"] = session.user_name.as_str().into();
    value["CreatedTime"] = timestamp(session.created).into();
    value
}

fn find(bmc: &Bmc, id: &str, path: &str) -> Result<Session, Box<Reply>> {
    bmc.sessions
        .list(&bmc.personality.sessions)
        .into_iter()
        .find(|session| session.id == id)
        .ok_or_else(|| missing(path))
}

pub(crate) fn read(bmc: &Bmc, id: &str, path: &str) -> Result<Value, Box<Reply>> {
    find(bmc, id, path).map(|session| show(&session))
}

pub(crate) fn create(bmc: &Arc<Bmc>, request: &Incoming) -> Result<Reply, Box<Reply>> {
    let members = request.members()?;
    let mut faults = Vec::new();
    let mut text = |name: &str| match members.get(name) {
        Some(Value::String(text)) => text.as_str(),
        // The value could be a password, so it is not repeated.
        Some(_) => {
            faults.push(Message::property_value_type(&Value::from("***"), name));
            ""
        }
        None => {
            faults.push(Message::property_missing(name).about(&format!("/{name}")));
            ""
        }
    };
    let (user_name, password) = (text("UserName"), text("Password"));
    faults.extend(
        members
            .keys()
            .filter(|name| !["UserName", "Password", "Context", "Token", "SessionType"].contains(&name.as_str()))
            .filter(|name| !name.contains('@'))
            .map(|name| Message::property_unknown(name)),
    );
    if !faults.is_empty() {
        return Err(Box::new(Reply::error(400, &faults)));
    }
    let rules = &bmc.personality.sessions;
    let Some(caller) = bmc.accounts.check(user_name, password, rules) else {
        let message = Message::wrong_credentials(&request.path);
        return Err(Box::new(Reply::error(401, &[message])));
    };
    let Some((token, session)) = bmc.sessions.open(&caller, rules) else {
        return Err(Box::new(Reply::error(503, &[Message::session_limit()])));
    };
    let mut value = show(&session);
    if caller.change_required {
        let uri = format!("/redfish/v1/AccountService/Accounts/{}", caller.account);
        let message = Message::password_change_required(&uri);
        value["@Message.ExtendedInfo"] = json!([message.to_json()]);
    }
    let mut reply = Reply::resource(201, &value, bmc.personality.http.etags);
    reply.set(header::LOCATION, &format!("{SESSIONS}/{}", session.id));
    reply.set_header("x-auth-token", &token);
    Ok(reply)
}

pub(crate) fn delete(bmc: &Bmc, id: &str, caller: Option<&Caller>, path: &str) -> Result<Reply, Box<Reply>> {
    let session = find(bmc, id, path)?;
    let allowed =
        caller.is_some_and(|caller| caller.account == session.account || caller.role.may(Privilege::ConfigureManager));
    if !allowed {
        return Err(Box::new(access::forbidden()));
    }
    if bmc.sessions.close(id) { Ok(Reply::empty(204)) } else { Err(missing(path)) }
}

fn missing(path: &str) -> Box<Reply> {
    Box::new(Reply::error(404, &[Message::missing_resource(path)]))
}
