//! The operation annotation of a server: resets, and parking with its end.

use kube::{ResourceExt as _, runtime::controller::Action};
use serde_json::json;

use super::{
    bmc::Failure,
    family::{Family, OPERATION, PARKED},
    server::Turn,
};

/// Executes the annotation. Returns `None` if the reconcile should continue.
pub async fn handle(turn: &mut Turn<'_>) -> Result<Option<Action>, Failure> {
    let operation = turn.server.annotations().get(OPERATION).cloned().unwrap_or_default();
    if !turn.ctx.family.can_park() {
        return reset_only(turn, &operation).await;
    }
    let reset = Family::reset(&operation);
    let parked = turn.server.annotations().contains_key(PARKED);
    match operation.as_str() {
        "unpark" => unpark(turn, parked).await?,
        "" | "park" if parked => stand_down(turn, &operation).await?,
        _ if parked && reset.is_some() => stand_down(turn, &operation).await?,
        "park" => match park(turn).await? {
            Parking::Deferred => return Ok(None),
            Parking::UnderWay => return Ok(Some(Action::requeue(turn.ctx.options.resync))),
            Parking::Done => {}
        },
        "" => return Ok(None),
        _ => {
            if let Some(kind) = reset {
                turn.machine.reset(&turn.path(), kind).await?;
            } else {
                let note = format!("{operation} is not an operation");
                turn.ctx.event(&turn.server, true, "UnsupportedOperation", "ClearOperationAnnotation", note).await;
            }
        }
    }
    if !operation.is_empty() {
        consume(turn).await?;
    }
    Ok(Some(Action::await_change()))
}

/// Before v0.7, unknown values stay on the server.
async fn reset_only(turn: &mut Turn<'_>, operation: &str) -> Result<Option<Action>, Failure> {
    let kind = match Family::reset(operation) {
        Some(kind) => kind,
        // v0.1.0 passes any value to the BMC.
        None if turn.ctx.family == Family::V0_1 && !operation.is_empty() => operation,
        None => return Ok(None),
    };
    turn.machine.reset(&turn.path(), kind).await?;
    consume(turn).await?;
    Ok(Some(Action::await_change()))
}

async fn consume(turn: &mut Turn<'_>) -> Result<(), Failure> {
    turn.merge(json!({"metadata": {"annotations": {OPERATION: null}}})).await
}

enum Parking {
    Deferred,
    UnderWay,
    Done,
}

async fn park(turn: &mut Turn<'_>) -> Result<Parking, Failure> {
    if !matches!(turn.state(), "Available" | "Reserved") {
        let note = format!("not to be parked while it is {}", turn.state());
        turn.ctx.event(&turn.server, true, "ParkDeferred", "DeferPark", note).await;
        return Ok(Parking::Deferred);
    }
    turn.refresh().await?;
    if !matches!(turn.power(), "Off" | "PoweringOff") {
        turn.machine.reset(&turn.path(), "GracefulShutdown").await?;
    }
    if turn.power() != "Off" {
        return Ok(Parking::UnderWay);
    }
    turn.merge(json!({"metadata": {"annotations": {PARKED: "true"}}})).await?;
    turn.ctx.event(&turn.server, false, "Parked", "PowerOff", "off and parked".to_owned()).await;
    Ok(Parking::Done)
}

async fn stand_down(turn: &mut Turn<'_>, operation: &str) -> Result<(), Failure> {
    if !matches!(operation, "" | "park") {
        let note = format!("{operation} is not done while parked");
        turn.ctx.event(&turn.server, true, "ParkedOperationDropped", "ClearOperationAnnotation", note).await;
    }
    turn.enter("Parked").await.map(|_| ())
}

async fn unpark(turn: &mut Turn<'_>, parked: bool) -> Result<(), Failure> {
    if parked {
        turn.merge(json!({"metadata": {"annotations": {PARKED: null}}})).await?;
        let note = "going back to work".to_owned();
        turn.ctx.event(&turn.server, false, "Unparking", "Unpark", note).await;
    }
    Ok(())
}
