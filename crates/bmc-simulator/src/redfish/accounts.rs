//! The account service, as far as clients and the Redfish protocol validator need it.

use std::sync::Arc;

use hyper::header;
use serde_json::{Map, Value, json};

use super::reply::{collection, resource};
use super::{Incoming, Message, Reply, access};
use crate::bmc::{Account, Bmc, Caller, Privilege, Role};

const SERVICE: &str = "/redfish/v1/AccountService";
const ACCOUNTS: &str = "/redfish/v1/AccountService/Accounts";
const ROLES: &str = "/redfish/v1/AccountService/Roles";

pub(crate) fn service(bmc: &Bmc) -> Value {
    let rules = &bmc.personality.sessions;
    let mut service = resource(SERVICE, "#AccountService.v1_15_0.AccountService", "AccountService", "Account Service");
    service["ServiceEnabled"] = true.into();
    service["HTTPBasicAuth"] = if rules.basic_auth { "Enabled" } else { "Disabled" }.into();
    service["AccountLockoutThreshold"] = rules.lockout_after.into();
    if let Some(time) = rules.lockout {
        service["AccountLockoutDuration"] = time.as_secs().into();
    }
    service["MinPasswordLength"] = 8.into();
    service["MaxPasswordLength"] = 64.into();
    service["Accounts"] = json!({ "@odata.id": ACCOUNTS });
    service["Roles"] = json!({ "@odata.id": ROLES });
    service
}

pub(crate) fn list(bmc: &Bmc) -> Value {
    let accounts = bmc.accounts.lock();
    collection(
        ACCOUNTS,
        "#ManagerAccountCollection.ManagerAccountCollection",
        "Accounts Collection",
        accounts.iter().map(|account| format!("{ACCOUNTS}/{}", account.id)),
    )
}

fn show(account: &Account) -> Value {
    let mut value = resource(
        &format!("{ACCOUNTS}/{}", account.id),
        "#ManagerAccount.v1_12_0.ManagerAccount",
        &account.id,
        "User Account",
    );
    value["UserName"] = account.user_name.as_str().into();
    value["Password"] = Value::Null;
    value["RoleId"] = account.role.id().into();
    value["Enabled"] = account.enabled.into();
    value["Locked"] = account.locked().into();
    value["PasswordChangeRequired"] = account.change_required.into();
    value["AccountTypes"] = json!(["Redfish"]);
    value["Links"] = json!({ "Role": { "@odata.id": format!("{ROLES}/{}", account.role.id()) } });
    value
}

fn missing(path: &str) -> Box<Reply> {
    Box::new(Reply::error(404, &[Message::missing_resource(path)]))
}

pub(crate) fn read(bmc: &Bmc, id: &str, path: &str) -> Result<Value, Box<Reply>> {
    bmc.accounts.lock().iter().find(|account| account.id == id).map(show).ok_or_else(|| missing(path))
}

/// A change to an account, validated completely before it is applied.
#[derive(Default)]
struct Change {
    user_name: Option<String>,
    password: Option<String>,
    role: Option<Role>,
    enabled: Option<bool>,
    must_renew: Option<bool>,
    unlock: bool,
}

fn judge(members: &Map<String, Value>) -> Result<Change, Vec<Message>> {
    let mut change = Change::default();
    let mut faults = Vec::new();
    for (name, value) in members {
        // Never repeat a password.
        let wrong_type = || {
            let shown = if name == "Password" { &Value::Null } else { value };
            Message::property_value_type(shown, name)
        };
        let verdict = match (name.as_str(), value) {
            ("UserName", Value::String(text)) if !text.is_empty() => {
                change.user_name = Some(text.clone());
                Ok(())
            }
            ("Password", Value::String(text)) if (8..=64).contains(&text.len()) => {
                change.password = Some(text.clone());
                Ok(())
            }
            ("Password", Value::String(_)) => Err(Message::property_value_format(&Value::from("***"), name)),
            ("RoleId", Value::String(text)) => match Role::parse(text) {
                Some(role) => {
                    change.role = Some(role);
                    Ok(())
                }
                None => Err(Message::property_value_not_in_list(value, name)),
            },
            ("Enabled", Value::Bool(enabled)) => {
                change.enabled = Some(*enabled);
                Ok(())
            }
            ("PasswordChangeRequired", Value::Bool(required)) => {
                change.must_renew = Some(*required);
                Ok(())
            }
            ("Locked", Value::Bool(false)) => {
                change.unlock = true;
                Ok(())
            }
            ("UserName" | "Password" | "RoleId" | "Enabled" | "PasswordChangeRequired" | "Locked", _) => {
                Err(wrong_type())
            }
            ("Id" | "Name" | "Links", _) => Err(Message::property_not_writable(name)),
            _ if name.contains('@') => Ok(()),
            _ => Err(Message::property_unknown(name)),
        };
        if let Err(message) = verdict {
            faults.push(message.about(&format!("/{name}")));
        }
    }
    if faults.is_empty() { Ok(change) } else { Err(faults) }
}

pub(crate) fn create(bmc: &Arc<Bmc>, request: &Incoming) -> Result<Reply, Box<Reply>> {
    let members = request.members()?;
    let refuse = |faults: &[Message]| Err(Box::new(Reply::error(400, faults)));
    let change = match judge(&members) {
        Ok(change) => change,
        Err(faults) => return refuse(&faults),
    };
    let (Some(user_name), Some(password)) = (change.user_name, change.password) else {
        let name = if members.contains_key("UserName") { "Password" } else { "UserName" };
        return refuse(&[Message::property_missing(name)]);
    };
    let mut account =
        Account::new(bmc.accounts.next_id(), user_name, password.into(), change.role.unwrap_or(Role::ReadOnly));
    account.enabled = change.enabled.unwrap_or(true);
    account.change_required = change.must_renew.unwrap_or(false);
    let mut accounts = bmc.accounts.lock();
    if accounts.iter().any(|other| other.user_name == account.user_name) {
        return refuse(&[Message::already_exists("ManagerAccount", "UserName", &account.user_name)]);
    }
    let mut reply = Reply::resource(201, &show(&account), bmc.personality.http.etags);
    reply.set(header::LOCATION, &format!("{ACCOUNTS}/{}", account.id));
    accounts.push(account);
    Ok(reply)
}

pub(crate) fn patch(
    bmc: &Arc<Bmc>,
    id: &str,
    request: &Incoming,
    caller: Option<&Caller>,
) -> Result<Reply, Box<Reply>> {
    let members = request.members()?;
    let change = judge(&members).map_err(|faults| Box::new(Reply::error(400, &faults)))?;
    if members.keys().all(|name| name.contains('@')) {
        return Err(Box::new(Reply::error(400, &[Message::no_operation()])));
    }
    // Without the privilege to change users, callers can change only their own password.
    let privileged = caller.is_some_and(|caller| caller.role.may(Privilege::ConfigureUsers))
        && caller.is_some_and(|caller| !caller.change_required);
    if !privileged && members.keys().any(|name| name != "Password") {
        return Err(Box::new(access::forbidden()));
    }
    let mut accounts = bmc.accounts.lock();
    let account = accounts.iter_mut().find(|account| account.id == id).ok_or_else(|| missing(&request.path))?;
    if let Some(user_name) = change.user_name {
        account.user_name = user_name;
    }
    if let Some(password) = change.password {
        account.password = password.into();
        account.change_required = false;
    }
    if let Some(role) = change.role {
        account.role = role;
    }
    if let Some(enabled) = change.enabled {
        account.enabled = enabled;
    }
    if let Some(required) = change.must_renew {
        account.change_required = required;
    }
    if change.unlock {
        account.unlock();
    }
    Ok(Reply::resource(200, &show(account), bmc.personality.http.etags))
}

pub(crate) fn delete(bmc: &Bmc, id: &str, caller: Option<&Caller>, path: &str) -> Result<Reply, Box<Reply>> {
    if !caller.is_some_and(|caller| caller.role.may(Privilege::ConfigureUsers)) {
        return Err(Box::new(access::forbidden()));
    }
    let mut accounts = bmc.accounts.lock();
    let place = accounts.iter().position(|account| account.id == id).ok_or_else(|| missing(path))?;
    // Without the first account, logging in would be impossible.
    if place == 0 {
        return Err(Box::new(Reply::error(400, &[Message::in_use()])));
    }
    accounts.remove(place);
    Ok(Reply::empty(204))
}

pub(crate) fn roles() -> Value {
    collection(
        ROLES,
        "#RoleCollection.RoleCollection",
        "Roles Collection",
        Role::ALL.iter().map(|role| format!("{ROLES}/{}", role.id())),
    )
}

pub(crate) fn role(id: &str, path: &str) -> Result<Value, Box<Reply>> {
    let role = Role::parse(id).ok_or_else(|| missing(path))?;
    let mut value = resource(&format!("{ROLES}/{id}"), "#Role.v1_3_2.Role", id, "User Role");
    value["RoleId"] = id.into();
    value["IsPredefined"] = true.into();
    value["AssignedPrivileges"] = json!(role.privileges());
    value["OemPrivileges"] = json!([]);
    Ok(value)
}
