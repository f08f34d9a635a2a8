//! x
mod model;
mod random;
mod scratch;
mod tally;
mod workload;
pub fn run(_: &crate::cli::DemoArgs) -> Result<(), crate::exit::Failure> {
    Ok(())
}
