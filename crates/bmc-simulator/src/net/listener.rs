//! A BMC's port: open, closed, or open and silent.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::connection;
use crate::bmc::{Availability, Bmc};
use crate::world::World;

/// Opens the port and serves it until the simulator stops.
pub(crate) fn listen(world: &Arc<World>, bmc: &Arc<Bmc>, address: SocketAddr) -> io::Result<JoinHandle<()>> {
    let listener = reserve(address)?.listen(1024)?;
    // Set the address before any caller reads it.
    let _ = bmc.address.set(listener.local_addr()?);
    Ok(tokio::spawn(serve(Arc::clone(world), Arc::clone(bmc), listener)))
}

/// Binds a socket to a port. While it does not listen, the port refuses connections, and the system
/// never assigns it to others.
fn reserve(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

enum Port {
    Open(TcpListener),
    Reserved(Option<TcpSocket>),
}

async fn serve(world: Arc<World>, bmc: Arc<Bmc>, listener: TcpListener) {
    let Ok(address) = listener.local_addr() else {
        return;
    };
    let mut availability = bmc.availability.subscribe();
    let mut stop = world.stopping();
    let mut port = Port::Open(listener);
    loop {
        let wanted = *availability.borrow_and_update();
        port = match (wanted, port) {
            (Availability::Refusing, Port::Open(listener)) => {
                drop(listener);
                Port::Reserved(reserve(address).ok())
            }
            (Availability::Up | Availability::Silent, Port::Reserved(socket)) => {
                let socket = socket.map_or_else(|| reserve(address), Ok);
                match socket.and_then(|socket| socket.listen(1024)) {
                    Ok(listener) => Port::Open(listener),
                    // Another process took the port: this BMC cannot recover.
                    Err(_) => return,
                }
            }
            (_, port) => port,
        };
        bmc.applied.send_replace(wanted);
        let accepted = tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return,
            changed = availability.changed() => {
                if changed.is_err() {
                    return;
                }
                continue;
            }
            accepted = accept(&port) => accepted,
        };
        // An error here belongs to one connection, or ends when other connections close.
        let Ok(stream) = accepted else {
            tokio::task::yield_now().await;
            continue;
        };
        tokio::spawn(connection::serve(Arc::clone(&world), Arc::clone(&bmc), stream));
    }
}

async fn accept(port: &Port) -> io::Result<tokio::net::TcpStream> {
    match port {
        Port::Open(listener) => listener.accept().await.map(|(stream, _)| stream),
        Port::Reserved(_) => std::future::pending().await,
    }
}

/// Changes a BMC's availability, and waits until the change is effective.
pub(crate) async fn set_availability(world: &World, bmc: &Bmc, wanted: Availability) {
    bmc.availability.send_replace(wanted);
    let mut applied: watch::Receiver<Availability> = bmc.applied.subscribe();
    let mut stop = world.stopping();
    tokio::select! {
        _ = stop.wait_for(|stop| *stop) => return,
        _ = applied.wait_for(|is| *is == wanted) => {}
    }
    if wanted == Availability::Refusing {
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => {}
            () = bmc.connections.drained() => {}
        }
    }
}
