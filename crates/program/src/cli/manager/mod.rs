//! The commands of a fabric with a manager. All but `init` and `manager` itself ask the manager's interface, and
//! nothing else.

mod args;
mod change;
mod events;
mod look;
mod making;
mod rows;
mod session;
mod tokens;

pub use args::{
    Asker, AssignArgs, BackupArgs, DomainCommand, FabricCommand, FunctionCommand, InitArgs, JoinTokenCommand,
    LimitFunctionArgs, ListArgs, LoanCommand, ManagerArgs, ManagerCommand, NamedArgs, NodeCommand,
    OfNodeArgs, RailCommand, RestoreArgs, RoleName, SlotCommand, SwitchNamedArgs, TokenCommand, UnassignArgs,
    WaitArgs,
};
pub(super) use events::follow;
pub(super) use look::{devices, show_device, show_switch, switches};
pub(crate) use tokens::new_to_join;

use management::client::Target;
use management::shapes::{ApiToken, Audit, Domain, Function, JoinToken, Loan, Node};

use self::session::Session;
use crate::exit::Failure;
use crate::roles;

impl FabricCommand {
    /// Does what it says.
    pub(super) fn run(&self) -> Result<(), Failure> {
        match self {
            Self::Init(args) => roles::init(args),
            Self::Manager(args) => manager(args),
            Self::Assign(args) => change::assign(args),
            Self::Unassign(args) => change::unassign(args),
            Self::Function(FunctionCommand::List(args)) => look::list::<Function>(args, &["functions"]),
            Self::Function(FunctionCommand::Show(args)) => look::show_of_node::<Function>(args, "functions"),
            Self::Function(FunctionCommand::Create(args)) => making::create(args),
            Self::Function(FunctionCommand::Delete(args)) => making::delete(args),
            Self::Function(FunctionCommand::Limit(args)) => change::limit(args),
            Self::Domain(DomainCommand::List(args)) => look::list::<Domain>(args, &["domains"]),
            Self::Domain(DomainCommand::Show(args)) => look::show_of_node::<Domain>(args, "domains"),
            Self::Slot(SlotCommand::List(args)) => look::slots(args),
            Self::Slot(SlotCommand::Show(args)) => look::show_slot(args),
            Self::Rail(RailCommand::List(args)) => look::rails(args),
            Self::Rail(RailCommand::Show(args)) => look::show_rail(args),
            Self::Loan(LoanCommand::List(args)) => look::list::<Loan>(args, &["loans"]),
            Self::Loan(LoanCommand::Show(args)) => look::show_of_node::<Loan>(args, "loans"),
            Self::Token(TokenCommand::List(args)) => look::list::<ApiToken>(args, &["tokens"]),
            Self::Token(TokenCommand::Make { name, role, replace, write, asker, output }) => {
                let body = tokens::wanted(name, (*role).into(), *replace);
                tokens::make(asker, &body, write.as_deref(), *output)
            }
            Self::Token(TokenCommand::Remove(args)) => {
                let what = format!("nobody asks by the token {} any more", args.name);
                change::remove(&args.asker, ["tokens", args.name.as_str()], &what, args.output)
            }
            Self::JoinToken(command) => join_token(command),
            Self::Audit(args) => look::list::<Audit>(args, &["audit"]),
        }
    }
}

impl NodeCommand {
    /// Does what it says.
    pub(super) fn run(&self) -> Result<(), Failure> {
        match self {
            Self::List(args) => look::list::<Node>(args, &["nodes"]),
            Self::Show(args) => look::show::<Node>(&args.asker, ["nodes", args.name.as_str()], args.output),
            Self::Remove(args) => {
                let what = format!("{} does not belong to the fabric any more", args.name);
                change::remove(&args.asker, ["nodes", args.name.as_str()], &what, args.output)
            }
            Self::Groups { name, groups, asker, output } => change::groups(asker, name, groups, *output),
        }
    }
}

fn manager(args: &ManagerArgs) -> Result<(), Failure> {
    match (&args.command, &args.config) {
        (Some(ManagerCommand::Backup(args)), _) => back_up(args),
        (Some(ManagerCommand::Restore(args)), _) => roles::restore(args),
        (Some(ManagerCommand::Rebuild { config, any_time }), _) => roles::rebuild(config, *any_time),
        (Some(ManagerCommand::EndRestore { anyway, asker }), _) => change::end_restore(asker, *anyway),
        (Some(ManagerCommand::Show { asker, output }), _) => look::fabric(asker, *output),
        (None, Some(config)) => roles::manager(config, args.end_with),
        (None, None) => Err(Failure::usage("which manager? Give --config M.toml")),
    }
}

fn back_up(args: &BackupArgs) -> Result<(), Failure> {
    let bytes = match &args.config {
        Some(config) => roles::backup_of_files(config)?,
        None => Session::open(&args.asker)?.bytes(&Target::new(["backup"]))?,
    };
    roles::write_backup(&args.file, &bytes)
}

fn join_token(command: &JoinTokenCommand) -> Result<(), Failure> {
    match command {
        JoinTokenCommand::List(args) => look::list::<JoinToken>(args, &["join-tokens"]),
        JoinTokenCommand::Make { expires, groups, domains, asker, output } => {
            tokens::make_to_join(asker, *expires, groups.as_deref(), *domains, *output)
        }
        JoinTokenCommand::Remove { hash, asker, output } => {
            let what = "no node joins by that token any more";
            change::remove(asker, ["join-tokens", hash.as_str()], what, *output)
        }
    }
}

/// The path of a function, or of something else that a node has.
fn target_of(kind: &str, name: &manager::model::FunctionName) -> Target {
    Target::new([kind, name.node.as_str(), name.function.as_str()])
}

/// A list with what it is filtered by.
fn filtered(path: &[&str], filter: &[(String, String)]) -> Target {
    let target = Target::new(path.iter().copied());
    filter.iter().fold(target, |target, (field, value)| target.with(field, value))
}
