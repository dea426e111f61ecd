//! `cargo xtask bench`: Strait beside what Debian offers for the same job, in one run on one machine. Absolute figures
//! say more about the machine than about the programs; the ratios are what counts.
//!
//! Every subject answers the same load from the same origin across the same link, policy (a thousand rules) and record
//! on. A peer that isn't installed is reported as missing, never as beaten.

mod gateways;
mod measure;
mod model;
mod peers;
mod report;
mod rows;
mod site;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use self::{report::Report, site::Site};
use crate::{
    build, interrupt,
    setup::{self, Need},
    workspace,
};

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Only these rows (`H1`, `T2`, …).
    rows: Vec<String>,
    /// Rounds; the median counts.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Seconds of each load.
    #[arg(long, default_value_t = 2)]
    seconds: u32,
    /// Measure what `cargo build --release` left behind, without building again.
    #[arg(long)]
    as_built: bool,
    /// Install LiteLLM and Portkey, which are large, and measure them too.
    #[arg(long)]
    peers: bool,
    /// Where the figures go as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    if !setup::is_root() {
        bail!("the benchmarks make network namespaces and load kernel programs; run as root");
    }
    setup::ensure(&[Need::Build, Need::Test, Need::Bench])?;
    if args.as_built {
        build::lay_out(build::Args::RELEASE)?;
    } else {
        build::run(build::Args::RELEASE)?;
        build::load_client()?;
    }
    interrupt::watch()?;
    if args.peers {
        gateways::install()?;
    }
    let site = Site::start(args.seconds, args.peers)?;
    let mut report = Report::default();
    let mut broken = Vec::new();
    for row in rows::ROWS.iter().filter(|row| args.rows.is_empty() || args.rows.iter().any(|id| id == row.id))
    {
        eprintln!("bench: {} {}", row.id, row.what);
        match rows::measure(row, &site, args.rounds) {
            Ok(figures) => report.add(row, figures),
            Err(error) => {
                eprintln!("bench: {}: {error:#}", row.id);
                broken.push(row.id);
            }
        }
    }
    print!("{}", report.table());
    let json = args.json.unwrap_or_else(|| workspace::target().join("bench.json"));
    std::fs::write(&json, report.json()).with_context(|| format!("can't write `{}`", json.display()))?;
    println!("bench: {} of {} goals met; figures in {}", report.met(), report.len(), json.display());
    if !broken.is_empty() {
        bail!("not measured: {}", broken.join(", "));
    }
    Ok(())
}
