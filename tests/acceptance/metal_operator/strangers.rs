//! Actions of other users in the same cluster.

use serde_json::{Value, json};

use crate::servers::ironcore::{
    Operators,
    api::{Key, Kind, Object, text},
    world::World,
};

/// Namespace of the other users.
pub const OTHERS: &str = "others";

/// Creates another user's `ServerMaintenance`.
pub async fn request(world: &World, name: &str, server: &str, policy: &str, priority: i64) -> Key {
    request_in(world, OTHERS, name, server, policy, priority).await
}

/// Same as `request`, in a given namespace.
pub async fn request_in(world: &World, namespace: &str, name: &str, server: &str, policy: &str, priority: i64) -> Key {
    world.ensure(Kind::Namespace, json!({"metadata": {"name": namespace}})).await;
    let annotations = json!({"metal.ironcore.dev/reason": "swap disk 3"});
    let mut spec = json!({"policy": policy, "serverRef": {"name": server}});
    if world.family.has_priority() {
        spec["priority"] = priority.into();
    }
    let object = json!({"metadata": {"name": name, "namespace": namespace, "annotations": annotations}, "spec": spec});
    world.cluster.create(world.maintenances(), object).await.unwrap();
    Key::within(namespace, name)
}

/// Waits for a request's state.
pub async fn until_request(world: &World, key: &Key, state: &str) -> Object {
    world.until(world.maintenances(), key, state, |object| text(object, "/status/state") == state).await
}

/// Deletes a request.
pub async fn withdraw(world: &World, key: &Key) {
    world.cluster.delete(world.maintenances(), key).await.unwrap();
}

/// Returns this provider's request for a server.
pub async fn ours(world: &World, server: &str) -> Option<Object> {
    let mut all = world.list(world.maintenances()).await;
    all.retain(|one| {
        text(one, "/spec/serverRef/name") == server && Key::of(one).namespace.as_deref() == Some("default")
    });
    all.into_iter().next()
}

/// Returns a server's current holder.
pub async fn holder(world: &World, server: &str) -> Option<Key> {
    Key::referred(&world.object(Kind::Server, &Key::cluster(server)).await, "/spec/serverMaintenanceRef")
}

/// Changes a server's object, like an authorised user.
pub async fn change(world: &World, server: &str, change: Value) {
    world.cluster.merge(Kind::Server, &Key::cluster(server), change).await.unwrap();
}

/// Transfers a server to another request, or to none.
pub async fn hand_to(world: &World, server: &str, other: Option<&Key>) {
    let reference = other.map(|key| json!({"namespace": key.namespace, "name": key.name}));
    change(world, server, json!({"spec": {"serverMaintenanceRef": reference}})).await;
}

/// Deletes an object and its finalizers.
pub async fn tear_out(world: &World, kind: Kind, key: &Key) {
    world.cluster.delete(kind, key).await.unwrap();
    let gone = async |this: &World| this.find(kind, key).await.is_none();
    while !gone(world).await {
        // Controllers can add their finalizers again.
        let _ = world.cluster.merge(kind, key, json!({"metadata": {"finalizers": null}})).await;
    }
}

/// Kills the API server and stops the operators.
pub fn goes_away(world: &mut World) {
    world.operators.stop();
    world.kubernetes.kill();
}

/// Restarts both.
pub fn comes_back(world: &mut World) {
    world.kubernetes.start_again();
    let before = &world.operators.context;
    world.operators = Operators::start(before.cluster.client.clone(), before.family, before.options.clone());
}
