//! A BMC's Redfish service.
//!
//! Everything here is synchronous and uses one BMC and at most one machine, so locks are never held
//! across an await.

mod access;
mod accounts;
mod managers;
mod media;
mod message;
mod reply;
mod root;
mod route;
mod sessions;
mod systems;
mod tasks;

use std::sync::Arc;

use bytes::Bytes;
use hyper::{HeaderMap, Method};
use serde_json::{Map, Value};

pub(crate) use self::access::method_of;
pub(crate) use self::message::{Message, REGISTRY};
pub use self::reply::{Reply, RequestView};
pub(crate) use self::route::Route;
use crate::bmc::{Bmc, Caller};
use crate::personality::IfMatch;

/// The largest body that a BMC reads.
pub(crate) const LARGEST_BODY: usize = 1 << 20;

/// A request with its whole body.
#[derive(Clone, Debug)]
pub(crate) struct Incoming {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: Option<String>,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Incoming {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Sets or removes a body property. Leaves a body without the property's parent unchanged.
    pub(crate) fn alter(&mut self, property: &str, value: Option<&Value>) {
        let Ok(mut body) = serde_json::from_slice::<Value>(&self.body) else { return };
        let Some((parent, name)) = property.rsplit_once('/') else { return };
        let Some(members) = body.pointer_mut(parent).and_then(Value::as_object_mut) else { return };
        match value {
            Some(value) => drop(members.insert(name.to_owned(), value.clone())),
            None => drop(members.remove(name)),
        }
        self.body = body.to_string().into();
    }

    fn reads(&self) -> bool {
        self.method == Method::GET || self.method == Method::HEAD
    }

    /// Parses the body, which must be a JSON object.
    fn members(&self) -> Result<Map<String, Value>, Box<Reply>> {
        if let Some(kind) = self.header("content-type") {
            let kind = kind.split(';').next().unwrap_or_default().trim();
            if !kind.eq_ignore_ascii_case("application/json") {
                let message = Message::header_invalid("Content-Type");
                return Err(Box::new(Reply::error(415, &[message])));
            }
        }
        match serde_json::from_slice(&self.body) {
            Ok(Value::Object(members)) => Ok(members),
            Ok(_) => Err(Box::new(Reply::error(400, &[Message::not_an_object()]))),
            Err(_) => Err(Box::new(Reply::error(400, &[Message::malformed_json()]))),
        }
    }

    fn view(&self) -> RequestView<'_> {
        RequestView { method: self.method.as_str(), path: &self.path, body: &self.body, headers: &self.headers }
    }
}

/// Executes a request and returns the answer, with the caller's authenticated account.
pub(crate) fn answer(bmc: &Arc<Bmc>, request: &Incoming, route: Option<&Route>) -> (Reply, Option<String>) {
    let mut account = None;
    let mut reply = respond(bmc, request, route, &mut account).unwrap_or_else(|refusal| *refusal);
    if let Some(quirks) = &bmc.personality.quirks {
        quirks.after(&request.view(), &mut reply);
    }
    reply::finish(&mut reply, &request.method, route.map(Route::allow), bmc.personality.http.closes_connections);
    (reply, account)
}

/// Returns an answer in both cases; `Err` means that the handler was not reached.
fn respond(
    bmc: &Arc<Bmc>,
    request: &Incoming,
    route: Option<&Route>,
    account: &mut Option<String>,
) -> Result<Reply, Box<Reply>> {
    let refuse = |status, message| Err(Box::new(Reply::error(status, &[message])));
    let known = [Method::GET, Method::HEAD, Method::POST, Method::PATCH, Method::PUT, Method::DELETE];
    if !known.contains(&request.method) {
        return refuse(405, Message::method_not_allowed());
    }
    if request.header("odata-version").is_some_and(|version| version != "4.0") {
        return refuse(412, Message::header_invalid("OData-Version"));
    }
    if let Some(status) = bmc.personality.http.redirects_without_slash
        && !request.path.ends_with('/')
        && route.is_some_and(Route::is_resource)
    {
        let mut reply = Reply::empty(status);
        reply.set(hyper::header::LOCATION, &format!("{}/", request.path));
        return Ok(reply);
    }
    let public = route.is_some_and(|route| route.is_public(&request.method));
    let caller = if public { None } else { Some(access::check(bmc, request, route)?) };
    *account = caller.as_ref().map(|caller| caller.user_name.clone());
    let Some(route) = route else {
        return refuse(404, Message::missing_resource(&request.path));
    };
    if let Some(name) = unsupported_query(request) {
        return refuse(501, Message::query_not_supported(&name));
    }
    let allowed = route.allow().split(", ").any(|method| method == request.method.as_str());
    if !allowed {
        return refuse(405, Message::method_not_allowed());
    }
    if let Some(reply) = bmc.personality.quirks.as_ref().and_then(|quirks| quirks.before(&request.view())) {
        return Ok(reply);
    }
    if request.reads() {
        let mut reply = read(bmc, route, &request.path)?;
        if not_modified(request, &reply) {
            reply.set_status(304);
            reply.body = Bytes::new();
        }
        return Ok(reply);
    }
    if request.method == Method::PATCH {
        check_precondition(bmc, request, route)?;
    }
    write(bmc, request, route, caller.as_ref())
}

fn read(bmc: &Arc<Bmc>, route: &Route, path: &str) -> Result<Reply, Box<Reply>> {
    let etags = bmc.personality.http.etags;
    let value = match route {
        // The specification fixes these answers' content, so an entity tag cannot be added.
        Route::Versions => return Ok(Reply::json(200, &root::versions())),
        Route::OData => return Ok(Reply::json(200, &root::odata(bmc))),
        Route::Metadata => {
            return Ok(Reply::with_body(200, "application/xml", root::metadata()));
        }
        Route::TaskMonitor(id) => return tasks::monitor(bmc, id, path),
        Route::System(machine) => return Ok(systems::read(bmc, machine)),
        Route::Root => root::root(bmc),
        Route::SessionService => sessions::service(bmc),
        Route::Sessions => sessions::list(bmc),
        Route::Session(id) => sessions::read(bmc, id, path)?,
        Route::AccountService => accounts::service(bmc),
        Route::Accounts => accounts::list(bmc),
        Route::Account(id) => accounts::read(bmc, id, path)?,
        Route::Roles => accounts::roles(),
        Route::Role(id) => accounts::role(id, path)?,
        Route::Systems => systems::list(bmc),
        Route::Settings(machine) => systems::settings(machine),
        Route::BootOptions(machine) => systems::boot_options(machine),
        Route::BootOption(machine, id) => systems::boot_option(machine, id, path)?,
        Route::EthernetInterfaces(machine) => systems::ethernet_interfaces(machine),
        Route::EthernetInterface(machine) => systems::ethernet_interface(machine),
        Route::Processors(machine) => systems::processors(machine),
        Route::Processor(machine) => systems::processor(machine),
        Route::ResetInfo(machine) => systems::reset_info(machine),
        Route::MediaList(under, machine) => media::list(bmc, *under, machine),
        Route::Media(under, machine, device) => media::read(bmc, *under, machine, *device),
        Route::Managers => managers::list(bmc),
        Route::Manager => managers::bmc_manager(bmc),
        Route::NodeManager(machine) => managers::node_manager(machine),
        Route::NetworkProtocol => managers::network_protocol(bmc),
        Route::Chassis => managers::chassis(bmc),
        Route::Enclosure(machine) => managers::enclosure(bmc, machine),
        Route::TaskService => tasks::service(),
        Route::Tasks => tasks::list(bmc),
        Route::Task(id) => tasks::read(bmc, id, path)?,
        Route::Registries => root::registries(),
        Route::Registry => root::registry(),
        Route::RegistryFile => root::registry_file(),
        Route::Reset(_) | Route::InsertMedia(..) | Route::EjectMedia(..) => {
            let message = Message::method_not_allowed();
            return Err(Box::new(Reply::error(405, &[message])));
        }
    };
    Ok(Reply::resource(200, &value, etags))
}

fn write(bmc: &Arc<Bmc>, request: &Incoming, route: &Route, caller: Option<&Caller>) -> Result<Reply, Box<Reply>> {
    match route {
        Route::Sessions => sessions::create(bmc, request),
        Route::Session(id) => sessions::delete(bmc, id, caller, &request.path),
        Route::Accounts => accounts::create(bmc, request),
        Route::Account(id) if request.method == Method::PATCH => accounts::patch(bmc, id, request, caller),
        Route::Account(id) => accounts::delete(bmc, id, caller, &request.path),
        Route::System(machine) => systems::patch(bmc, machine, request),
        Route::Settings(machine) => systems::patch_settings(bmc, machine, request),
        Route::Reset(machine) => systems::reset(bmc, machine, request),
        Route::Media(_, machine, device) => media::patch(machine, *device, request),
        Route::InsertMedia(machine, device) => media::insert(machine, *device, request),
        Route::EjectMedia(machine, device) => media::eject(machine, *device, request),
        _ => Err(Box::new(Reply::error(405, &[Message::method_not_allowed()]))),
    }
}

fn check_precondition(bmc: &Arc<Bmc>, request: &Incoming, route: &Route) -> Result<(), Box<Reply>> {
    let rule = bmc.personality.http.if_match;
    let Some(wanted) = request.header("if-match") else {
        return if rule == IfMatch::Required {
            let message = Message::precondition_required();
            Err(Box::new(Reply::error(428, &[message])))
        } else {
            Ok(())
        };
    };
    if rule == IfMatch::Ignored || wanted.trim() == "*" {
        return Ok(());
    }
    let current = read(bmc, route, &request.path)?;
    let current = current.headers.get(hyper::header::ETAG).and_then(|etag| etag.to_str().ok()).unwrap_or_default();
    // Redfish clients send back the tag that they received, even if it is weak.
    if wanted.split(',').any(|tag| tag.trim() == current) {
        Ok(())
    } else {
        Err(Box::new(Reply::error(412, &[Message::precondition_failed()])))
    }
}

fn not_modified(request: &Incoming, reply: &Reply) -> bool {
    let current = reply.headers.get(hyper::header::ETAG);
    match (request.header("if-none-match"), current) {
        (Some(known), Some(current)) => known.split(',').any(|tag| tag.trim().as_bytes() == current.as_bytes()),
        _ => false,
    }
}

/// Returns an unsupported query parameter with a dollar, which the specification answers with 501.
/// Other parameters are ignored.
fn unsupported_query(request: &Incoming) -> Option<String> {
    request
        .query
        .as_deref()?
        .split('&')
        .map(|pair| pair.split('=').next().unwrap_or_default())
        .map(|name| name.replace("%24", "$"))
        .find(|name| name.starts_with('$') || name == "only" || name == "excerpt")
}
