//! Authentication and authorisation.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::header;

use super::{Incoming, Message, Reply, Route};
use crate::bmc::{Bmc, Caller, Privilege};
use crate::journal::Authentication;

/// Returns a request's authentication method.
pub(crate) fn method_of(request: &Incoming) -> Authentication {
    if request.headers.contains_key("x-auth-token") {
        Authentication::Session
    } else if request.headers.contains_key(header::AUTHORIZATION) {
        Authentication::Basic
    } else {
        Authentication::None
    }
}

/// Authenticates and authorises a request to a resource that is not public.
///
/// Unknown paths require authentication too, so that clients cannot probe which paths exist.
pub(crate) fn check(bmc: &Bmc, request: &Incoming, route: Option<&Route>) -> Result<Caller, Box<Reply>> {
    let caller = authenticate(bmc, request)?;
    if caller.change_required {
        let own = matches!(route, Some(Route::Account(id)) if *id == caller.account);
        if !own {
            let uri = format!("/redfish/v1/AccountService/Accounts/{}", caller.account);
            let message = Message::password_change_required(&uri);
            return Err(Box::new(Reply::error(403, &[message])));
        }
    }
    // Check before any precondition, so that an unprivileged caller cannot probe the account.
    let foreign = matches!(route, Some(Route::Account(id)) if *id != caller.account);
    if foreign && !caller.role.may(Privilege::ConfigureUsers) {
        return Err(Box::new(forbidden()));
    }
    let needed = route.and_then(|route| route.privilege(&request.method));
    if needed.is_some_and(|needed| !caller.role.may(needed)) {
        return Err(Box::new(forbidden()));
    }
    Ok(caller)
}

pub(crate) fn forbidden() -> Reply {
    Reply::error(403, &[Message::insufficient_privilege()])
}

fn authenticate(bmc: &Bmc, request: &Incoming) -> Result<Caller, Box<Reply>> {
    let rules = &bmc.personality.sessions;
    let unauthorized = |message| {
        let mut reply = Reply::error(401, &[message]);
        if rules.basic_auth {
            reply.set(header::WWW_AUTHENTICATE, "Basic realm=\"Redfish\"");
        }
        Err(Box::new(reply))
    };
    match method_of(request) {
        Authentication::Session if rules.offered => request
            .header("x-auth-token")
            .and_then(|token| bmc.sessions.account_of(token, rules))
            .and_then(|account| bmc.accounts.caller(&account))
            .map_or_else(|| unauthorized(Message::no_valid_session()), Ok),
        Authentication::Basic if rules.basic_auth => {
            let Some((user_name, password)) = basic(request) else {
                return unauthorized(Message::header_invalid("Authorization"));
            };
            bmc.accounts
                .check(&user_name, &password, rules)
                .map_or_else(|| unauthorized(Message::wrong_credentials(&request.path)), Ok)
        }
        _ => unauthorized(Message::no_valid_session()),
    }
}

fn basic(request: &Incoming) -> Option<(String, String)> {
    let value = request.header("authorization")?;
    let (scheme, encoded) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let text = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
    let (user_name, password) = text.split_once(':')?;
    Some((user_name.to_owned(), password.to_owned()))
}
