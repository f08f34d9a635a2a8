//! A fabric in a folder, and a manager that runs on it.

use std::path::Path;

use management::authority::{Config, Options, init};
use management::server::{ServeError, Server};
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::client::Client;

/// A fabric that was founded in a folder.
pub(crate) struct Fabric {
    pub(crate) dir: TempDir,
    pub(crate) config: Config,
    /// Credentials of the administrator.
    admin: toml::Table,
}

impl Fabric {
    pub(crate) fn found() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("fabric");
        let founded = init(&home, &Options::default()).unwrap();
        let mut config = Config::load(&founded.config).unwrap();
        config.listen = vec!["127.0.0.1:0".parse().unwrap()];
        Self { dir, config, admin: std::fs::read_to_string(founded.admin).unwrap().parse().unwrap() }
    }

    /// Reads the administrator's credentials again.
    pub(crate) fn reload_admin(&mut self) {
        let file = self.dir.path().join("fabric/admin.toml");
        self.admin = std::fs::read_to_string(file).unwrap().parse().unwrap();
    }

    pub(crate) fn log(&self) -> std::path::PathBuf {
        self.config.state.join("log")
    }

    pub(crate) async fn try_start(&self) -> Result<Running, ServeError> {
        // A manager that has just been killed may have its lock still, until its thread has noticed.
        let mut tries = 0;
        let server = loop {
            match Server::start(&self.config).await {
                Err(ServeError::Store(management::store::StoreError::Locked { .. })) if tries < 200 => {
                    tries += 1;
                }
                other => break other?,
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        };
        let address = server.addresses()[0];
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(server.run(async move { drop(stopped.await) }));
        let said = |key: &str| self.admin[key].as_str().unwrap();
        let client = Client::new(address, said("authority"), said("token"));
        Ok(Running { client, stop: Some(stop), task })
    }

    pub(crate) async fn start(&self) -> Running {
        self.try_start().await.unwrap()
    }

    pub(crate) fn home(&self) -> &Path {
        self.dir.path()
    }
}

/// A manager that runs.
pub(crate) struct Running {
    /// The administrator.
    pub(crate) client: Client,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), ServeError>>,
}

impl Running {
    /// Ends it in order.
    pub(crate) async fn stop(mut self) -> Result<(), ServeError> {
        drop(self.stop.take());
        self.task.await.unwrap()
    }

    /// Ends it as if the process was killed: nothing is closed.
    pub(crate) async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}
