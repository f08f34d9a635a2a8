//! The commands of a fabric with a manager, and their arguments.

use std::net::SocketAddr;
use std::path::PathBuf;

use base::ids::Group;
use clap::{Args, Subcommand, ValueEnum};
use manager::model::{BLOCK_MAX, FunctionName, Name, OnSilence, Role};

use crate::cli::{ByteSize, OutputArgs, ValueError, values};

/// Commands that only a fabric with a manager has.
#[derive(Debug, Subcommand)]
pub enum FabricCommand {
    /// Found a fabric: its authority, the configuration of its manager, and the token of its administrator
    Init(InitArgs),
    /// Run the manager of a fabric, or see to its files
    Manager(ManagerArgs),
    /// Assign a function to a slot of a virtual machine, on whatever nodes the two are
    Assign(AssignArgs),
    /// Take a function back from the slot that it is assigned to
    Unassign(UnassignArgs),
    /// Look at the functions of a fabric, make and delete them, and limit what they may do
    #[command(subcommand)]
    Function(FunctionCommand),
    /// Look at the virtual machines of a fabric
    #[command(subcommand)]
    Domain(DomainCommand),
    /// Look at the slots of all virtual machines of a fabric
    #[command(subcommand)]
    Slot(SlotCommand),
    /// Look at the rails of all nodes of a fabric
    #[command(subcommand)]
    Rail(RailCommand),
    /// Look at the functions that are assigned to somebody
    #[command(subcommand)]
    Loan(LoanCommand),
    /// See to the tokens by which people and programs may ask the manager
    #[command(subcommand)]
    Token(TokenCommand),
    /// See to the tokens by which nodes may join the fabric
    #[command(subcommand)]
    JoinToken(JoinTokenCommand),
    /// Show who has changed what, from the manager's log
    Audit(ListArgs),
}

/// As whom to ask which manager.
#[derive(Debug, Clone, Default, Args)]
pub struct Asker {
    /// Credentials for the manager [default: $CAUSEWAY_MANAGER, else $XDG_CONFIG_HOME/causeway/manager.toml, else
    /// /etc/causeway/manager.toml]
    #[arg(long, value_name = "FILE")]
    pub manager: Option<PathBuf>,
}

/// `causeway init`.
#[derive(Debug, Args)]
pub struct InitArgs {
    /// A folder that is not there yet, or empty
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Where the manager listens [default: 127.0.0.1:7443, which only this machine reaches]
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: Option<SocketAddr>,
    /// A host name or address by which others reach the manager; may be given several times, the first one is what
    /// they are told
    #[arg(long, value_name = "HOST")]
    pub name: Vec<String>,
}

/// `causeway manager`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct ManagerArgs {
    /// What else to do.
    #[command(subcommand)]
    pub command: Option<ManagerCommand>,
    /// The configuration file, as `causeway init` has made it
    #[arg(long, value_name = "M.toml", required = true)]
    pub config: Option<PathBuf>,
    /// End when this process, which has started us, ends
    #[arg(long, value_name = "PID", hide = true)]
    pub end_with: Option<u32>,
}

/// What can be done with a manager, or its files.
#[derive(Debug, Subcommand)]
pub enum ManagerCommand {
    /// Write a backup of all that is decided to a file, which only this user can read. Keys are not in it: they never
    /// change, and are copied with the folder
    Backup(BackupArgs),
    /// Put a backup in place of the files of a manager that does not run, which are kept beside it
    Restore(RestoreArgs),
    /// Begin the state of a fabric anew, where the manager's log is lost: nodes show that they belong to it, and
    /// lenders say who has their functions. What is there is kept beside it
    Rebuild {
        /// The manager's configuration file
        #[arg(long, value_name = "M.toml")]
        config: PathBuf,
        /// Take nodes in also by certificates whose time is over, or has not come: after the manager was away for more
        /// than 30 days, or had a wrong clock. Whoever shows one still has to prove its key
        #[arg(long)]
        any_time: bool,
    },
    /// End what a restore has begun: lenders that were not heard until now are believed when they are, and nothing of
    /// theirs is assigned before
    EndRestore {
        /// Even though nodes were not heard since
        #[arg(long)]
        anyway: bool,
        /// As whom to ask.
        #[command(flatten)]
        asker: Asker,
    },
    /// Show the fabric as its manager knows it, in a few lines
    Show {
        /// As whom to ask.
        #[command(flatten)]
        asker: Asker,
        /// What to print.
        #[command(flatten)]
        output: OutputArgs,
    },
}

/// `causeway manager backup`.
#[derive(Debug, Args)]
pub struct BackupArgs {
    /// The backup; a file of that name is replaced
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The configuration file of a manager that does not run [default: one that runs is asked]
    #[arg(long, value_name = "M.toml", conflicts_with = "manager")]
    pub config: Option<PathBuf>,
    /// As whom to ask.
    #[command(flatten)]
    pub asker: Asker,
}

/// `causeway manager restore`.
#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// The backup
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The manager's configuration file
    #[arg(long, value_name = "M.toml")]
    pub config: PathBuf,
}

/// `causeway assign`.
#[derive(Debug, Args)]
pub struct AssignArgs {
    /// What to assign
    #[arg(value_name = "NODE/FUNCTION", value_parser = function)]
    pub function: FunctionName,
    /// Where to; NODE/DOMAIN/SLOT where several nodes have such a domain
    #[arg(value_name = "DOMAIN/SLOT", value_parser = slot)]
    pub slot: String,
    /// The zone in which the two nodes see each other, 1 to 4094 [default: the least one that both may enter]
    #[arg(long, value_name = "N", value_parser = values::group)]
    pub group: Option<Group>,
    /// What becomes of it when one end is silent: both keep it for hold(SECONDS), or end it at once with remove
    #[arg(long, value_name = "WHAT", value_parser = values::on_silence)]
    pub on_silence: Option<OnSilence>,
    /// How long the lender is waited for.
    #[command(flatten)]
    pub wait: WaitArgs,
    /// As whom to ask.
    #[command(flatten)]
    pub asker: Asker,
    /// What to print.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `causeway unassign`.
#[derive(Debug, Args)]
pub struct UnassignArgs {
    /// What to take back
    #[arg(value_name = "NODE/FUNCTION", value_parser = function)]
    pub function: FunctionName,
    /// Do not wait for the borrower to let go of it: what it has not written is lost
    #[arg(long)]
    pub force: bool,
    /// How long the lender is waited for.
    #[command(flatten)]
    pub wait: WaitArgs,
    /// As whom to ask.
    #[command(flatten)]
    pub asker: Asker,
    /// What to print.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `--wait`.
#[derive(Debug, Clone, Copy, Args)]
pub struct WaitArgs {
    /// How long to wait until it is done everywhere; what is not is decided all the same, and happens later [default:
    /// 30, and not at all for a lender that is silent]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub wait: Option<u64>,
}

/// A list.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Only those of which a field, as json names it, has this value; may be given several times
    #[arg(long, value_name = "FIELD=VALUE", value_parser = filter)]
    pub filter: Vec<(String, String)>,
    /// As whom to ask.
    #[command(flatten)]
    pub asker: Asker,
    /// What to print.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// One node by its name.
#[derive(Debug, Args)]
pub struct NamedArgs {
    /// Its name
    #[arg(value_name = "NAME")]
    pub name: Name,
    /// As whom to ask.
    #[command(flatten)]
    pub asker: Asker,
    /// What to print.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// One switch, by what it calls itself or by its id.
#[derive(Debug, Args)]
pub struct SwitchNamedArgs {
    /// Its name, or its id where several have that
    #[arg(value_name = "NAME|ID")]
    pub name: String,
    /// As whom to ask.
    #[command(flatten)]
    pub asker: Asker,
    /// What to print.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// A part of something that a node has, as its list names it.
#[derive(Debug, Args)]
pub struct PartNamedArgs {
    /// NODE/DOMAIN/SLOT of a slot, NODE/RAIL of a rail
    #[arg(value_name = "NODE/...")]
    pub name: String,
    /// As whom to ask.
    #[command(flatten)]
    pub asker: Asker,
    /// What to print.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// One thing that a node has.
#[derive(Debug, Args)]
pub struct OfNodeArgs {
    /// Its node's name and its own
    #[arg(value_name = "NODE/NAME", value_parser = of_node)]
    pub name: FunctionName,
    /// As whom to ask.
    #[command(flatten)]
    pub asker: Asker,
    /// What to print.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// What can be done with nodes of a fabric.
#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// List the nodes of the fabric
    List(ListArgs),
    /// Show one node: its groups, rails, and what is wrong with it
    Show(NamedArgs),
    /// Put a node out of the fabric: what it lends is gone, what it borrows is taken back, its key is refused
    Remove(NamedArgs),
    /// Say which groups a node may enter, in place of those that it may enter now
    Groups {
        /// Its name
        #[arg(value_name = "NAME")]
        name: Name,
        /// The groups, 1 to 4094
        #[arg(value_name = "N", required = true, value_parser = values::group)]
        groups: Vec<Group>,
        /// As whom to ask.
        #[command(flatten)]
        asker: Asker,
        /// What to print.
        #[command(flatten)]
        output: OutputArgs,
    },
}

/// `causeway function`.
#[derive(Debug, Subcommand)]
pub enum FunctionCommand {
    /// List what the nodes of the fabric lend
    List(ListArgs),
    /// Show one function: what it is, and who has it
    Show(OfNodeArgs),
    /// Make a function of a device while its node runs: with a namespace of its own, or one that is shared
    Create(CreateFunctionArgs),
    /// Delete a function that was made so, with all that is in its namespace; one that is assigned is not
    Delete(DeleteFunctionArgs),
    /// Say what a function may do in a second, whoever has it; a loan that runs goes on. What is not given has no limit
    Limit(LimitFunctionArgs),
}

/// `causeway function create`.
#[derive(Debug, Args)]
pub struct CreateFunctionArgs {
    /// The device, as its node's file names it
    #[arg(value_name = "NODE/DEVICE", value_parser = function)]
    pub device: FunctionName,
    /// What the function is called at its node: 1 to 32 of `a-z 0-9 -`
    #[arg(value_name = "NAME")]
    pub name: Name,
    /// Give it a namespace of its own, of this size
    #[arg(long, value_name = "SIZE", required_unless_present = "namespace", conflicts_with = "namespace")]
    pub size: Option<ByteSize>,
    /// Give it this namespace, which the node's file says is shared
    #[arg(long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// In which zone it is lent [default: the device's]
    #[arg(long, value_name = "N", value_parser = values::group)]
    pub group: Option<Group>,
    /// Most I/O commands a second [default: the device's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub iops: Option<u64>,
    /// Most bytes read and written a second [default: the device's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub bytes_per_s: Option<u64>,
    /// How long the lender is waited for.
    #[command(flatten)]
    pub wait: WaitArgs,
    /// As whom to ask.
    #[command(flatten)]
    pub asker: Asker,
    /// What to print.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `causeway function delete`.
#[derive(Debug, Args)]
pub struct DeleteFunctionArgs {
    /// The function
    #[arg(value_name = "NODE/FUNCTION", value_parser = function)]
    pub function: FunctionName,
    /// How long the lender is waited for.
    #[command(flatten)]
    pub wait: WaitArgs,
    /// As whom to ask.
    #[command(flatten)]
    pub asker: Asker,
    /// What to print.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `causeway function limit`.
#[derive(Debug, Args)]
pub struct LimitFunctionArgs {
    /// The function
    #[arg(value_name = "NODE/FUNCTION", value_parser = function)]
    pub function: FunctionName,
    /// Most I/O commands a second [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub iops: Option<u64>,
    /// Most bytes read and written a second [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub bytes_per_s: Option<u64>,
    /// How long the lender is waited for.
    #[command(flatten)]
    pub wait: WaitArgs,
    /// As whom to ask.
    #[command(flatten)]
    pub asker: Asker,
    /// What to print.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `causeway domain`.
#[derive(Debug, Subcommand)]
pub enum DomainCommand {
    /// List the virtual machines that nodes of the fabric know
    List(ListArgs),
    /// Show one virtual machine and its slots
    Show(OfNodeArgs),
}

/// `causeway slot`.
#[derive(Debug, Subcommand)]
pub enum SlotCommand {
    /// List the slots of all virtual machines, and what is in them
    List(ListArgs),
    /// Show one slot: what is in it, and what keeps it from being used
    Show(PartNamedArgs),
}

/// `causeway rail`.
#[derive(Debug, Subcommand)]
pub enum RailCommand {
    /// List the rails of all nodes
    List(ListArgs),
    /// Show one rail of a node, and who takes it to be dead
    Show(PartNamedArgs),
}

/// `causeway loan`.
#[derive(Debug, Subcommand)]
pub enum LoanCommand {
    /// List the functions that are assigned to somebody
    List(ListArgs),
    /// Show the loan of one function
    Show(OfNodeArgs),
}

/// `causeway token`.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// List the tokens of people and programs
    List(ListArgs),
    /// Make a token, and print it: this once, for the manager does not keep it
    Make {
        /// What it is called, in the audit log too
        #[arg(value_name = "NAME")]
        name: Name,
        /// What it lets do: look, assign and unassign too, or everything
        #[arg(value_name = "ROLE", value_enum)]
        role: RoleName,
        /// Make it in place of one of that name, which is worth nothing any more
        #[arg(long)]
        replace: bool,
        /// Write credentials with it to this file, which is not there yet and only this user can read, instead of
        /// printing it
        #[arg(long, value_name = "FILE", conflicts_with = "format")]
        write: Option<PathBuf>,
        /// As whom to ask.
        #[command(flatten)]
        asker: Asker,
        /// What to print.
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Let nobody ask by a token any more
    Remove(NamedArgs),
}

/// What a token lets do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RoleName {
    /// Look.
    ReadOnly,
    /// Assign and unassign.
    Operator,
    /// Let nodes in and out, and say who may do what.
    Administrator,
}

impl From<RoleName> for Role {
    fn from(name: RoleName) -> Self {
        match name {
            RoleName::ReadOnly => Self::ReadOnly,
            RoleName::Operator => Self::Operator,
            RoleName::Administrator => Self::Administrator,
        }
    }
}

/// `causeway join-token`.
#[derive(Debug, Subcommand)]
pub enum JoinTokenCommand {
    /// List the join tokens, and who has used them
    List(ListArgs),
    /// Make a token that one node may join with, and print it: this once, for the manager does not keep it
    Make {
        /// For how long it is good [default: 86400, a day]
        #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
        expires: Option<u64>,
        /// Which groups its node may enter [default: 1]
        #[arg(long, value_name = "N,N...", value_delimiter = ',', value_parser = values::group)]
        groups: Option<Vec<Group>>,
        /// How many domains its node gets, a power of two: one for itself and one for each virtual machine [default:
        /// 64]
        #[arg(long, value_name = "N", value_parser = domains)]
        domains: Option<u32>,
        /// As whom to ask.
        #[command(flatten)]
        asker: Asker,
        /// What to print.
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Let no node join by a token that was not used yet
    Remove {
        /// Its hash, as `list` shows it
        #[arg(value_name = "HASH")]
        hash: String,
        /// As whom to ask.
        #[command(flatten)]
        asker: Asker,
        /// What to print.
        #[command(flatten)]
        output: OutputArgs,
    },
}

fn function(text: &str) -> Result<FunctionName, ValueError> {
    pair(text).ok_or_else(|| {
        let shown = text.escape_debug();
        ValueError(format!("`{shown}` is no function; write NODE/FUNCTION, as `causeway function list` does"))
    })
}

fn of_node(text: &str) -> Result<FunctionName, ValueError> {
    let shown = text.escape_debug();
    pair(text)
        .ok_or_else(|| ValueError(format!("`{shown}` does not name it; write NODE/NAME, as `list` does")))
}

fn pair(text: &str) -> Option<FunctionName> {
    text.parse().ok()
}

/// Names or numbers: which, the manager knows.
fn slot(text: &str) -> Result<String, ValueError> {
    let parts: Vec<&str> = text.split('/').collect();
    let are_names = parts.iter().all(|part| part.parse::<Name>().is_ok());
    match parts.len() {
        2 | 3 if are_names => Ok(text.to_owned()),
        _ => Err(ValueError(format!(
            "`{}` is no slot; write DOMAIN/SLOT, or NODE/DOMAIN/SLOT as `causeway slot list` does",
            text.escape_debug()
        ))),
    }
}

fn filter(text: &str) -> Result<(String, String), ValueError> {
    match text.split_once('=') {
        // These two say which part of a list is asked for.
        Some(("limit" | "after", _)) => Err(ValueError("limit and after are no fields".to_owned())),
        Some((field, value)) if !field.is_empty() => Ok((field.to_owned(), value.to_owned())),
        _ => Err(ValueError("write FIELD=VALUE, such as state=free".to_owned())),
    }
}

fn domains(text: &str) -> Result<u32, ValueError> {
    let domains =
        text.parse().ok().filter(|domains: &u32| domains.is_power_of_two() && *domains <= BLOCK_MAX);
    domains.ok_or_else(|| ValueError(format!("a node has 1 to {BLOCK_MAX} domains, a power of two")))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command, DeviceCommand};

    fn parse(arguments: &str) -> Result<Command, clap::Error> {
        let arguments = std::iter::once("causeway").chain(arguments.split_whitespace());
        Cli::<Command>::try_parse_from(arguments).map(|cli| cli.command)
    }

    #[test]
    fn commands_take_what_the_interface_names() {
        for right in [
            "init fabric",
            "init fabric --listen [::1]:7443 --name m.example --name 10.0.0.1",
            "manager --config M.toml",
            "manager backup b --config M.toml",
            "manager backup b --manager m.toml",
            "manager restore b --config M.toml",
            "manager rebuild --config M.toml",
            "manager rebuild --config M.toml --any-time",
            "switch --config S.toml",
            "switch list --filter state=heard -o json",
            "switch show middle",
            "manager end-restore --anyway",
            "manager show -o json",
            "assign store/nvme0 vm1/disk0",
            "assign store/nvme0 desk/vm1/disk0 --group 7 --on-silence remove --wait 0 --manager m.toml -o json",
            "function limit store/nvme0 --iops 100 --bytes-per-s 1000000 --wait 0",
            "function limit store/nvme0",
            "unassign store/nvme0 --force --wait 86400",
            "node --config N.toml",
            "node list",
            "node show store",
            "node remove store --manager m.toml",
            "node groups store 1 4094",
            "device list",
            "device show store",
            "device clear nvme0",
            "function list --filter state=free --filter node=a=b",
            "function show store/nvme0",
            "domain list",
            "domain show desk/vm1",
            "slot list",
            "rail list -o json",
            "loan list",
            "loan show store/nvme0",
            "token list",
            "token make ci read-only --write ci.toml",
            "token make ci operator -o json",
            "token remove ci",
            "join-token make",
            "join-token make --expires 60 --groups 1,2 --domains 64",
            "join-token list",
            "join-token remove 0abc",
            "audit --filter who=admin",
            "events",
            "events --manager --follow",
            "events --manager m.toml -f -o json",
        ] {
            assert!(parse(right).is_ok(), "{right}: {}", parse(right).unwrap_err());
        }
    }

    #[test]
    fn wrong_usage_is_refused() {
        for wrong in [
            "init",
            "init fabric --listen here",
            "manager",
            "manager backup",
            "manager backup b --config M.toml --manager m.toml",
            "manager restore b",
            "manager rebuild",
            "manager --config M.toml show",
            "assign store/nvme0",
            "assign nvme0 vm1/disk0",
            "assign store/nvme0 disk0",
            "assign store/nvme0 a/b/c/d",
            "assign store/nvme0 vm1/../x",
            "assign store/nvme0 vm1/disk0 --on-silence hold",
            "assign store/nvme0 vm1/disk0 --on-silence hold(2592001)",
            "assign store/nvme0 vm1/disk0 --group 4095",
            "function limit store/nvme0 --iops 0",
            "unassign store/nvme0 --wait 86401",
            "node",
            "node list --config N.toml",
            "switch",
            "switch --config S.toml list",
            "switch show",
            "node --config N.toml list",
            "node groups store",
            "node groups store 0",
            "node show a/b",
            "device",
            "function show nvme0",
            "function list --filter state",
            "function list --filter =free",
            "function list --filter limit=1",
            "token make ci king",
            "token make ci operator --write f -o json",
            "join-token make --domains 65",
            "join-token make --domains 8192",
            "join-token make --expires 0",
            "events --manager --name desk",
        ] {
            assert_eq!(parse(wrong).unwrap_err().exit_code(), 2, "{wrong}");
        }
    }

    #[test]
    fn values_arrive_as_they_were_meant() {
        let Command::Fabric(FabricCommand::Assign(args)) =
            parse("assign store/nvme0 vm1/3 --on-silence hold(60)").unwrap()
        else {
            panic!("not assign")
        };
        assert_eq!((args.function.to_string().as_str(), args.slot.as_str()), ("store/nvme0", "vm1/3"));
        assert_eq!((args.on_silence, args.wait.wait), (Some(OnSilence::Hold { seconds: 60 }), None));
        let Command::Fabric(FabricCommand::Function(FunctionCommand::List(args))) =
            parse("function list --filter slot=a=b").unwrap()
        else {
            panic!("not list")
        };
        assert_eq!(args.filter, [("slot".to_owned(), "a=b".to_owned())]);
        let Command::Device(DeviceCommand::Clear(args)) = parse("device clear nvme0").unwrap() else {
            panic!("not clear")
        };
        assert_eq!(args.device, "nvme0");
        let Command::Events(args) = parse("events --manager m.toml").unwrap() else { panic!("not events") };
        assert_eq!(args.manager, Some(Some("m.toml".into())));
    }
}
