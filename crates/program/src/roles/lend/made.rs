//! Functions of a device that a manager has made, beside those of the node's file.

use std::num::NonZeroU64;

use base::ids::LoanGeneration;
use io::agent::{LoanEnd, LoanSpec};
use node::{FunctionId, LendConfig, Limit, LoanConfig, MadeFunction, Title};

use super::{function_id, functions as functions_of, secret_of};
use crate::config::Device;
use crate::exit::Failure;
use crate::line::FunctionName;
use crate::roles::managed;
use crate::state_dir::StateDir;
use crate::state_dir::made::MadeRow;

/// Those that are lent, as a card is told of them.
pub(in crate::roles) fn functions(rows: &[MadeRow]) -> Vec<MadeFunction> {
    let ready = rows.iter().filter(|row| row.is_ready);
    ready.map(|row| MadeFunction { controller: row.controller, namespace: row.namespace }).collect()
}

/// How they are called, and how nodes name them.
pub(in crate::roles) fn ids(
    rows: &[MadeRow],
    state: &StateDir,
) -> Result<Vec<(FunctionName, FunctionId)>, Failure> {
    rows.iter().map(|row| Ok((name(row)?, number(row, state)))).collect()
}

/// How a function is called.
pub(in crate::roles) fn name(row: &MadeRow) -> Result<FunctionName, Failure> {
    row.made.name.as_str().parse().map_err(Failure::usage)
}

/// A function that a manager has made has its name, whatever a file says later.
pub(super) fn refuse_name(device: &Device, rows: &[MadeRow]) -> Result<(), Failure> {
    let own = functions_of(device)?;
    match rows.iter().find(|row| own.iter().any(|it| it.name.as_str() == row.made.name.as_str())) {
        Some(row) => Err(Failure::refused(format_args!(
            "the device {} has a function {}, and so has the manager made one here: call this one otherwise, or delete \
             that one (`causeway function delete`)",
            device.function, row.made.name
        ))),
        None => Ok(()),
    }
}

/// How nodes name it: no other function has the same, be it that one of the same name was deleted.
fn number(row: &MadeRow, state: &StateDir) -> FunctionId {
    let id = row.made.id;
    function_id(&secret_of(state.key(), format!("{} {} {}", row.made.name, id.epoch, id.index).as_bytes()))
}

/// What a function may do: what was decided since it was made, else what was decided with that, else what its device
/// says.
fn limit(row: &MadeRow, table: Option<&manager::member::Row>, device: &Device) -> Limit {
    let shape = row.made.shape.limits;
    let of = |said: Option<NonZeroU64>, fallback: Option<u64>| said.map(NonZeroU64::get).or(fallback);
    let made =
        Limit::new(of(shape.iops, device.limit.iops()), of(shape.bytes_per_s, device.limit.bytes_per_s()));
    table.and_then(managed::limit_of).or(made.ok()).unwrap_or(device.limit)
}

/// The loan of a function of the drive in `place`. No line opens it: it is for whom the manager assigns it to.
pub(in crate::roles) fn loan(
    row: &MadeRow,
    device: &Device,
    place: usize,
    state: &StateDir,
) -> Result<LoanSpec, Failure> {
    let (function, number) = (name(row)?, number(row, state));
    let table = state.managed_row(number.0)?;
    let entry = table.as_ref().and_then(managed::entry_of);
    let limit = limit(row, table.as_ref(), device);
    let allowed = device.allow.as_deref().map(Box::from);
    let lent = LendConfig { drive: place, controller: row.controller, limit, allowed, entry };
    // Memory is new in each life of the node.
    let tenancy = match device.source.memory() {
        Some(_) => state.renew_tenancy(&function)?,
        None => state.tenancy(&function)?,
    };
    let title = Title::Entry { generation: LoanGeneration(0), slot: 0 };
    let first = LoanConfig::by(title, number, LoanEnd::Lend(lent));
    let group = row.made.shape.group.unwrap_or(device.group);
    let config = LoanConfig { group, tenancy, ..first };
    Ok(LoanSpec { function: function.to_string(), config, hold: None })
}

/// Whether a loan is of a function that a manager has made.
pub(in crate::roles) fn is_made(loan: &LoanSpec) -> bool {
    loan.lent().is_some() && loan.config.title.secret().is_none()
}
