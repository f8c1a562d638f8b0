//! A connection, from the handshake to its end.

use std::io;
use std::sync::Arc;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::exchange;
use crate::bmc::{Availability, Bmc};
use crate::world::World;

/// Counts an open connection.
struct Counted {
    world: Arc<World>,
    bmc: Arc<Bmc>,
}

impl Counted {
    fn open(world: &Arc<World>, bmc: &Arc<Bmc>) -> Self {
        bmc.connections.open();
        world.timeline.announce();
        Self { world: Arc::clone(world), bmc: Arc::clone(bmc) }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.bmc.connections.close();
        self.world.timeline.announce();
    }
}

pub(crate) async fn serve(world: Arc<World>, bmc: Arc<Bmc>, stream: TcpStream) {
    let _counted = Counted::open(&world, &bmc);
    let number = world.next_connection();
    let mut availability = bmc.availability.subscribe();
    let mut stop = world.stopping();
    let talk = talk(Arc::clone(&world), Arc::clone(&bmc), number, stream);
    let mut talk = std::pin::pin!(talk);
    loop {
        let is = *availability.borrow_and_update();
        if is == Availability::Refusing {
            return;
        }
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return,
            changed = availability.changed() => if changed.is_err() { return },
            // Connection errors are visible to the client and in the journal.
            _ = &mut talk, if is == Availability::Up => return,
        }
    }
}

async fn talk(world: Arc<World>, bmc: Arc<Bmc>, number: u64, stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    match world.tls() {
        Some(config) => {
            let stream = TlsAcceptor::from(config).accept(stream).await?;
            speak(world, bmc, number, stream).await
        }
        None => speak(world, bmc, number, stream).await,
    }
}

async fn speak<S>(world: Arc<World>, bmc: Arc<Bmc>, number: u64, stream: S) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let service = service_fn(move |request| exchange::exchange(Arc::clone(&world), Arc::clone(&bmc), number, request));
    http1::Builder::new().serve_connection(TokioIo::new(stream), service).await.map_err(io::Error::other)
}
