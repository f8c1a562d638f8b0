//! A running simulator for tests in the same process.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use crate::config::{Credentials, SimulatorConfig, TlsMode};
use crate::control;
use crate::net::{TlsError, Trust, generate};
use crate::world::{AddError, Defaults, World};

/// A running simulator. Dropping it stops it without waiting; [`Simulator::stop`] waits.
#[derive(Clone, Debug)]
pub struct Simulator {
    pub(crate) world: Arc<World>,
    trust: Option<Trust>,
    control: Option<SocketAddr>,
    /// Stops the simulator when its last clone is dropped.
    _alive: Option<Arc<Alive>>,
}

#[derive(Debug)]
struct Alive(Arc<World>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// A simulator could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The certificate could not be created.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A machine could not be added.
    #[error(transparent)]
    Add(#[from] AddError),
    /// The control interface could not be opened.
    #[error("opening the control interface: {0}")]
    Control(io::Error),
}

impl Simulator {
    /// Starts a simulator in the current Tokio runtime.
    ///
    /// Every BMC accepts connections before this returns.
    pub async fn start(config: SimulatorConfig) -> Result<Self, StartError> {
        raise_file_limit();
        let (tls, trust) = match config.tls {
            TlsMode::Off => (None, None),
            TlsMode::Generated => {
                let (tls, trust) = generate(config.bind)?;
                (Some(tls), Some(trust))
            }
        };
        let defaults = Defaults {
            layout: config.layout,
            credentials: config.credentials,
            any_account: config.any_account,
            bind: config.bind,
            personality: Arc::new(config.personality),
            behaviour: config.behaviour,
            next_port: Mutex::new(config.port),
        };
        let world = World::new(defaults, tls, config.journal, config.latency);
        let mut simulator = Self { _alive: Some(Arc::new(Alive(Arc::clone(&world)))), world, trust, control: None };
        for system in config.systems {
            simulator.world.add(system)?;
        }
        if let Some(port) = config.control_port {
            let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
            let address = control::listen(&simulator, address).await.map_err(StartError::Control)?;
            simulator.control = Some(address);
        }
        Ok(simulator)
    }

    /// Returns a clone that does not keep the simulator alive, for its own control interface.
    pub(crate) fn weak(&self) -> Self {
        Self { _alive: None, ..self.clone() }
    }

    /// Stops listening, cuts every connection, and waits until the ports are free.
    pub async fn stop(self) {
        self.world.stop();
        for task in self.world.take_tasks() {
            // A listener that panicked has freed its port too.
            let _ = task.await;
        }
    }

    /// Returns the control interface's address, `http://…`.
    #[must_use]
    pub fn control_url(&self) -> Option<String> {
        self.control.map(|address| format!("http://{address}"))
    }

    /// Returns the administrator's account on every BMC.
    #[must_use]
    pub fn credentials(&self) -> &Credentials {
        &self.world.defaults.credentials
    }

    /// Returns the certificates that a client needs; `None` without TLS.
    #[must_use]
    pub fn trust(&self) -> Option<&Trust> {
        self.trust.as_ref()
    }
}

/// Raises the socket limit as far as the system allows: thousands of BMCs need thousands of
/// sockets.
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};

    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // If raising it fails, opening sockets reports the error later.
    let _ = setrlimit(Resource::Nofile, limit);
}
