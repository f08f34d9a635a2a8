//! The fabric of a rack: founded when its folder is not there yet, and joined by the nodes that shall belong to it.

use std::fs;
use std::path::{Path, PathBuf};

use management::authority::{Config as ManagerConfig, Options};
use management::keys::JoinToken;
use tracing::info;

use super::file::{Rack, write_private};
use crate::cli::{Asker, join, new_to_join};
use crate::config::Config;
use crate::exit::{Exit, Failure};
use crate::roles;
use crate::state_dir::{self, StateDir};

/// How long a node has to join, in seconds: it does so at once.
const TOKEN_S: u64 = 600;

/// The fabric of a rack.
pub(super) struct Fabric {
    folder: PathBuf,
    /// What its manager runs by.
    config: ManagerConfig,
}

impl Fabric {
    /// The one that the rack names, if it names one and it is there.
    ///
    /// # Errors
    /// Its files are wrong, or say something else than the rack.
    pub(super) fn find(rack: &Rack) -> Result<Option<Self>, Failure> {
        let Some(manager) = &rack.manager else { return Ok(None) };
        let file = config_of(&manager.folder);
        if fs::symlink_metadata(&file).is_err() {
            return Ok(None);
        }
        let config = ManagerConfig::load(&file).map_err(Failure::usage)?;
        let file = file.display();
        if let Some((listen, place)) = manager.listen.filter(|(listen, _)| !config.listen.contains(listen)) {
            let what = format!(
                "the manager listens elsewhere, as {file} says, which `causeway up` has written once: change `listen` \
                 and `urls` there to {listen}, and `url` in admin.toml, or take it out here"
            );
            return Err(rack.wrong(place, &what));
        }
        if let Some(name) = manager.names.0.iter().find(|name| !config.names.contains(name)) {
            let what =
                format!("`{name}` is none of the `names` in {file}, by which the manager runs: add it there");
            return Err(rack.wrong(manager.names.1, &what));
        }
        Ok(Some(Self { folder: manager.folder.clone(), config }))
    }

    /// The one that the rack names, if it names one; founded, if it is not there.
    ///
    /// # Errors
    /// As of [`Fabric::find`], or it cannot be founded.
    pub(super) fn ready(rack: &Rack) -> Result<Option<Self>, Failure> {
        let found = Self::find(rack)?;
        let Some(manager) = rack.manager.as_ref().filter(|_| found.is_none()) else { return Ok(found) };
        let defaults = Options::default();
        let listen = manager.listen.map_or(defaults.listen, |(listen, _)| listen);
        let founded =
            roles::found(&manager.folder, &Options { listen, names: manager.names.0.clone(), ..defaults })?;
        let folder = manager.folder.display();
        info!(fabric = %founded.fabric, %folder, "a fabric is founded; who has a copy of the folder is the fabric");
        Self::find(rack)
    }

    /// What its manager runs by.
    pub(super) fn config_file(&self) -> PathBuf {
        config_of(&self.folder)
    }

    /// The credentials of its administrator.
    pub(super) fn admin_file(&self) -> PathBuf {
        self.folder.join("admin.toml")
    }

    /// Whether a node belongs to it.
    ///
    /// # Errors
    /// It belongs to another one, or its folder cannot be read.
    pub(super) fn has(&self, node: &Config) -> Result<bool, Failure> {
        match StateDir::membership_in(&folder_of(node)?)? {
            Some(membership) if membership.fabric != self.config.fabric => {
                Err(Failure::refused(format_args!(
                    "the node {} belongs to fabric {}, and the rack's is {}, in {}: have it join that one by `causeway \
                 join`, or take `join` out of the rack",
                    node.name,
                    membership.fabric,
                    self.config.fabric,
                    self.folder.display()
                )))
            }
            membership => Ok(membership.is_some()),
        }
    }

    /// Has a node join, unless it belongs to it already. The manager runs.
    ///
    /// # Errors
    /// It belongs to another one, or the manager says no.
    pub(super) fn join(&self, node: &Config) -> Result<(), Failure> {
        let name = &node.name;
        if self.has(node)? {
            return Ok(());
        }
        let mut state = StateDir::open_on_trial(&folder_of(node)?)?;
        let failed = |failure: Failure| {
            let what = format!("the node {name} cannot join the rack's fabric: {}", failure.message());
            Failure::new(failure.exit(), what)
        };
        // A rack that was killed while a node joined takes the same token again: with another one, the manager would
        // say that the node is there.
        let kept = self.folder.join(format!("{name}.join"));
        let earlier = fs::read_to_string(&kept).ok().and_then(|text| text.trim().parse::<JoinToken>().ok());
        let joined = match earlier.map(|token| join(&mut state, &token, name)) {
            Some(Err(failure)) if failure.exit() != Exit::Refused => {
                let what =
                    format!("{} (the token of an earlier start is in {})", failure.message(), kept.display());
                return Err(failed(Failure::new(failure.exit(), what)));
            }
            Some(Ok(membership)) => membership,
            // That token is of no use any more, or there is none.
            _ => {
                let asker = Asker { manager: Some(self.admin_file()) };
                let made = new_to_join(&asker, Some(TOKEN_S), None, None).map_err(failed)?;
                let token =
                    made.token.parse::<JoinToken>().map_err(|error| failed(Failure::failed(error)))?;
                let unkept = |error| Failure::io(format_args!("cannot write {}", kept.display()), &error);
                write_private(&kept, &made.token).map_err(unkept)?;
                join(&mut state, &token, name).map_err(failed)?
            }
        };
        // What is left of it opens nothing: it is used.
        let _ = fs::remove_file(&kept);
        let (base, len) = (joined.block.base(), joined.block.len());
        info!(node = %name, fabric = %joined.fabric, domains = %format_args!("{base}/{len}"), "has joined");
        Ok(())
    }
}

fn config_of(folder: &Path) -> PathBuf {
    folder.join("manager.toml")
}

fn folder_of(node: &Config) -> Result<PathBuf, Failure> {
    match &node.state_dir {
        Some(folder) => Ok(folder.clone()),
        None => Ok(state_dir::default_path(&node.name)?),
    }
}
