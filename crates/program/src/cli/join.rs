//! `causeway join`: a node comes to belong to a fabric.

use std::io::Read;
use std::path::PathBuf;

use ::manager::model::{Block, Groups, Name, RequestId};
use base::ids::Group;
use clap::Args;
use management::joining::{self, JoinError, Welcome};
use management::keys::{self, JoinToken};

use super::{NodeName, hide_line, print};
use crate::config::open_regular;
use crate::exit::Failure;
use crate::state_dir::membership::{Certified, Membership};
use crate::state_dir::{self, StateDir};

/// No token is longer.
const TOKEN_BYTES_MAX: u64 = 4096;

/// `causeway join`.
#[derive(Debug, Args)]
pub struct JoinArgs {
    /// What an administrator has made by `causeway join-token make`: itself, @FILE, or - for standard input
    #[arg(value_name = "TOKEN")]
    pub token: TokenArgument,
    /// Name of the node on this machine, and in the fabric [default: the machine's name]
    #[arg(long, value_name = "NAME")]
    pub name: Option<NodeName>,
    /// Where key, identity and generations are kept [default: $XDG_STATE_HOME/causeway/NAME, for root
    /// /var/lib/causeway/NAME]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
}

/// Where a token comes from. It is a secret, so nothing shows it.
#[derive(Clone)]
pub struct TokenArgument(String);

impl From<String> for TokenArgument {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl std::fmt::Debug for TokenArgument {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TokenArgument(..)")
    }
}

impl TokenArgument {
    fn read(&self) -> Result<JoinToken, Failure> {
        let mut text = String::new();
        let unread = |from: &str, error: &std::io::Error| {
            Failure::io(format!("cannot read the token from {from}"), error)
        };
        match self.0.strip_prefix('@') {
            Some(path) => {
                let file = open_regular(path.as_ref()).map_err(|error| unread(path, &error))?;
                file.take(TOKEN_BYTES_MAX).read_to_string(&mut text).map_err(|error| unread(path, &error))?;
            }
            None if self.0 == "-" => {
                let input = std::io::stdin().lock().take(TOKEN_BYTES_MAX).read_to_string(&mut text);
                input.map_err(|error| unread("standard input", &error))?;
            }
            None => {
                text.clone_from(&self.0);
                tracing::warn!(
                    "a token given as an argument shows in the process list, if only for a moment, and stays in the \
                     shell's history: give it as @FILE, or as - on standard input"
                );
                let _ = hide_line(&self.0);
            }
        }
        text.trim().parse::<JoinToken>().map_err(Failure::usage)
    }
}

/// Joins the fabric of the token.
pub(super) fn run(args: &JoinArgs) -> Result<(), Failure> {
    let token = args.token.read()?;
    let name = match &args.name {
        Some(name) => name.clone(),
        None => machine_name()?,
    };
    let folder = match &args.state_dir {
        Some(folder) => folder.clone(),
        None => state_dir::default_path(&name)?,
    };
    let mut state = StateDir::open_on_trial(&folder)?;
    let membership = join(&mut state, &token, &name)?;
    let (id, fabric, block) = (state.identity().id(), membership.fabric, membership.block);
    let (base, len) = (block.base(), block.len());
    print(&format!("{} ({id}) belongs to fabric {fabric}, with domains {base}/{len}\n", membership.name))
}

/// Has the node of a folder join the fabric of the token, under that name. Repeated after it was interrupted, it is
/// done once.
pub(crate) fn join(state: &mut StateDir, token: &JoinToken, name: &NodeName) -> Result<Membership, Failure> {
    let called: Name = name.as_str().parse().map_err(Failure::usage)?;
    let pair = state.identity().clone();
    // The same node with the same token is the same request, however often it is asked.
    let seed = [&b"causeway join request"[..], &token.token.hash().0, &pair.public().0].concat();
    let mut request = RequestId::default();
    request.0.copy_from_slice(&keys::sha256(&seed)[..16]);
    let joined = joining::join(token, &pair, called.as_str(), request);
    if !matches!(joined, Err(JoinError::Refused(_))) {
        // The manager may have taken the key in, whatever was heard of it: the next try is by the same one.
        state.keep();
    }
    let welcome = joined.map_err(|error| match error {
        JoinError::Unreachable(why) => Failure::unreachable(format!("no manager has answered: {why}")),
        JoinError::Refused(why) => Failure::refused(why),
    })?;
    let certified = Certified { certificate: welcome.joined.certificate.clone(), revoked: Vec::new() };
    let membership = membership(token, welcome)?;
    if let Some(before) = state.membership()?.filter(|before| before.fabric != membership.fabric) {
        tracing::warn!(fabric = %before.fabric, "the node belonged to another fabric, which it has left");
    }
    state.set_membership(&membership)?;
    // Where it is lost, the manager gives the node another one.
    state.keep_certified(&certified)?;
    Ok(membership)
}

fn membership(token: &JoinToken, welcome: Welcome) -> Result<Membership, Failure> {
    let Welcome { joined, authority } = welcome;
    let odd = |what: &str| {
        Failure::failed(format!("the manager has answered what this version does not know: {what}"))
    };
    let (base, len) = joined.domains.split_once('/').ok_or_else(|| odd("no domains"))?;
    let block = base.parse().ok().zip(len.parse().ok()).and_then(|(base, len)| Block::new(base, len));
    let groups = Groups::new(joined.groups.iter().copied().map(Group));
    Ok(Membership {
        fabric: joined.fabric.parse().map_err(|_| odd("no fabric"))?,
        name: joined.name.parse().map_err(|_| odd("no name"))?,
        block: block.ok_or_else(|| odd("no domains"))?,
        groups: groups.ok_or_else(|| odd("no groups"))?,
        urls: token.urls.clone(),
        authority,
        manager: joined.manager.parse().map_err(|_| odd("no key"))?,
    })
}

fn machine_name() -> Result<NodeName, Failure> {
    let system = rustix::system::uname();
    let name = system.nodename().to_string_lossy();
    name.parse()
        .map_err(|error| Failure::usage(format!("give --name, for the machine's own is none: {error}")))
}
