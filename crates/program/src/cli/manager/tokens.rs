//! Tokens that are made. A token is printed once, and is nowhere else.

use std::path::Path;

use base::ids::Group;
use management::client::Target;
use management::shapes::{MadeToken, MakeApiToken, MakeJoinToken};
use manager::model::{Name, Role};

use super::Session;
use super::args::Asker;
use crate::cli::run::{print, print_json};
use crate::cli::{Output, OutputArgs};
use crate::exit::Failure;

/// The token that somebody wants.
pub(super) fn wanted(name: &Name, role: Role, replace: bool) -> MakeApiToken {
    MakeApiToken { name: name.to_string(), role: role.text().to_owned(), replace: replace.then_some(true) }
}

/// `causeway token make`.
pub(super) fn make(
    asker: &Asker,
    body: &MakeApiToken,
    write: Option<&Path>,
    output: OutputArgs,
) -> Result<(), Failure> {
    let mut session = Session::open(asker)?;
    if let Some(file) = write.filter(|file| std::fs::symlink_metadata(file).is_ok()) {
        let file = file.display();
        return Err(Failure::refused(format_args!("{file} is there already: choose a name that is not")));
    }
    let made: MadeToken = session.post(&Target::new(["tokens"]), body)?;
    let Some(file) = write else { return print_made(&made, output) };
    session.credentials_with(made.token).create(file).map_err(|error| {
        let (file, name) = (file.display(), &body.name);
        Failure::io(
            format_args!(
                "the token {name} was made, and cannot be written to {file}: remove it (`causeway token remove \
                 {name}`), and make it again"
            ),
            &error,
        )
    })
}

/// `causeway join-token make`.
pub(super) fn make_to_join(
    asker: &Asker,
    expires: Option<u64>,
    groups: Option<&[Group]>,
    domains: Option<u32>,
    output: OutputArgs,
) -> Result<(), Failure> {
    print_made(&new_to_join(asker, expires, groups, domains)?, output)
}

/// A token that a node joins with.
pub(crate) fn new_to_join(
    asker: &Asker,
    expires: Option<u64>,
    groups: Option<&[Group]>,
    domains: Option<u32>,
) -> Result<MadeToken, Failure> {
    let groups = groups.map(|groups| groups.iter().map(|group| group.0).collect());
    let body = MakeJoinToken { seconds: expires, groups, domains };
    Session::open(asker)?.post(&Target::new(["join-tokens"]), &body)
}

fn print_made(made: &MadeToken, output: OutputArgs) -> Result<(), Failure> {
    match output.format {
        Output::Text => print(&format!("{}\n", made.token)),
        Output::Json => print_json(made),
    }
}
