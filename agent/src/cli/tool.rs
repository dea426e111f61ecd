//! `strait tool`.

use std::{fs, io::Write as _, os::unix::fs::OpenOptionsExt as _, path::Path, process::ExitCode};

use anyhow::Context as _;
use clap::Subcommand;
use hyper::Method;
use serde::Serialize;
use strait_contract::{message::PolicyFile, tool::ToolName};
use strait_policies::Pin;

use super::table;
use crate::{
    approval::shown,
    control::{
        client,
        wire::{SeenView, ToolView},
    },
    instance::Instance,
};

/// List tools, and pin those of MCP servers
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Rules about arguments, and tools/list by policy, need to know a server's tools: a pinned list is a file \
        that a person has looked at, `tools/NAME.json` beside the policies. `strait tool pin NAME` compares what the \
        server last said (to any run that listed its tools) with that file; with --write it becomes the file. A tool that \
        differs from its pin is refused until it is pinned anew.\n\n\
        Examples:\n  strait tool list\n  strait tool pin github\n  strait tool pin github --show create_issue\n  \
        strait tool pin github --write && strait reload\n\n\
        Exit codes: 0 done, or nothing differs; 1 failed, or something differs and wasn't written; 2 wrong usage"
)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the tools of the configuration
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Compare the tools of an MCP server with their pin, and pin them
    Pin {
        /// The tool, as the configuration names it
        name: ToolName,
        /// Write the list to `tools/NAME.json`; `strait reload` puts it in force
        #[arg(long)]
        write: bool,
        /// Print what the server says of one of its tools
        #[arg(long, value_name = "TOOL", conflicts_with = "write")]
        show: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// One tool, compared.
#[derive(Debug, Serialize)]
struct Difference {
    tool: String,
    /// `same`, `new`, `gone`, `changed`.
    state: &'static str,
    /// What has changed.
    differs: Vec<&'static str>,
}

/// Lists or pins.
///
/// # Errors
/// If the agent doesn't answer, or a file can't be read or written.
pub fn run(args: &Args, instance: &Instance) -> anyhow::Result<ExitCode> {
    match &args.verb {
        Verb::List { json } => list(instance, *json),
        Verb::Pin { name, write, show, json } => {
            let path = format!("/v1/tools/{name}/seen");
            let seen: SeenView =
                super::block_on(client::ask(&instance.control_socket(), Method::GET, &path, None::<&()>))??;
            match show {
                Some(tool) => print_tool(&seen.list, name, tool),
                None => pin(instance, name, &seen.list, *write, *json),
            }
        }
    }
}

fn list(instance: &Instance, json: bool) -> anyhow::Result<ExitCode> {
    let tools: Vec<ToolView> =
        super::block_on(client::ask(&instance.control_socket(), Method::GET, "/v1/tools", None::<&()>))??;
    if json {
        println!("{}", serde_json::to_string_pretty(&tools)?);
        return Ok(ExitCode::SUCCESS);
    }
    let row = |tool: ToolView| {
        let agents = if tool.agents.is_empty() { "every".to_owned() } else { tool.agents.join(", ") };
        vec![tool.name, tool.kind, tool.url.unwrap_or_default(), tool.credential.unwrap_or_default(), agents]
    };
    let rows: Vec<_> = tools.into_iter().map(row).collect();
    table::print(&["TOOL", "KIND", "URL", "CREDENTIAL", "AGENTS"], &rows);
    Ok(ExitCode::SUCCESS)
}

fn parse(name: &ToolName, text: &str) -> anyhow::Result<Pin> {
    let file = PolicyFile { name: format!("{name}.json"), guardrail: false, text: text.to_owned() };
    Ok(Pin::parse(&file)?)
}

/// What the server says of one tool, with everything that isn't plain text spelled out.
fn print_tool(list: &str, server: &ToolName, name: &str) -> anyhow::Result<ExitCode> {
    let pin = parse(server, list)?;
    let tool = pin.tools.iter().find(|tool| tool.name == name);
    let tool = tool.with_context(|| format!("`{server}` has said nothing of a tool `{name}`"))?;
    // Hidden text is how a tool lies about itself (case 59).
    println!("{}", shown::text(&tool.live().to_string(), false));
    Ok(ExitCode::SUCCESS)
}

fn pin(
    instance: &Instance,
    name: &ToolName,
    list: &str,
    write: bool,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let seen = parse(name, list).context("what the server said can't be pinned")?;
    let path = instance.config_dir.join("tools").join(format!("{name}.json"));
    let pinned = match fs::read_to_string(&path) {
        Ok(text) => Some(parse(name, &text).with_context(|| format!("reading `{}`", path.display()))?),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(error).with_context(|| format!("reading `{}`", path.display())),
    };
    let differences = compare(pinned.as_ref(), &seen);
    let differ = differences.iter().any(|difference| difference.state != "same");
    if json {
        println!("{}", serde_json::to_string_pretty(&differences)?);
    } else {
        let row = |difference: &Difference| {
            vec![
                shown::text(&difference.tool, false),
                difference.state.to_owned(),
                difference.differs.join(", "),
            ]
        };
        table::print(&["TOOL", "STATE", "CHANGED"], &differences.iter().map(row).collect::<Vec<_>>());
    }
    if write && differ {
        put(&path, list).with_context(|| format!("writing `{}`", path.display()))?;
        eprintln!("strait: pinned in `{}`; `strait reload` puts it in force", path.display());
    } else if differ {
        eprintln!(
            "strait: look at what is new or changed (`strait tool pin {name} --show TOOL`), then pin it with --write"
        );
        return Ok(ExitCode::from(1));
    }
    Ok(ExitCode::SUCCESS)
}

fn compare(pinned: Option<&Pin>, seen: &Pin) -> Vec<Difference> {
    let of = |pin: &Pin, name: &str| pin.tools.iter().position(|tool| tool.name == name);
    let mut all: Vec<Difference> = seen
        .tools
        .iter()
        .map(|tool| {
            let known = pinned.and_then(|pin| pin.tools.iter().find(|known| known.name == tool.name));
            let differs = known.map(|known| known.drift(&tool.live())).unwrap_or_default();
            let state = match known {
                None => "new",
                Some(_) if differs.is_empty() => "same",
                Some(_) => "changed",
            };
            Difference { tool: tool.name.clone(), state, differs }
        })
        .collect();
    let gone = pinned.into_iter().flat_map(|pin| &pin.tools).filter(|tool| of(seen, &tool.name).is_none());
    all.extend(gone.map(|tool| Difference { tool: tool.name.clone(), state: "gone", differs: Vec::new() }));
    all
}

/// The whole file or none of it.
fn put(path: &Path, text: &str) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or_else(|| Path::new("."));
    fs::create_dir_all(folder)?;
    let making = path.with_extension("making");
    let mut open = fs::OpenOptions::new();
    let mut file = open.write(true).create(true).truncate(true).mode(0o644).open(&making)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&making, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pin(text: &str) -> Pin {
        parse(&"srv".parse().unwrap(), &format!(r#"{{"tools":[{text}]}}"#)).unwrap()
    }

    /// Case 59: what a person sees before pinning anew.
    #[test]
    fn what_is_new_changed_or_gone_is_told_apart() {
        let tool = |name: &str, said: &str| {
            format!(r#"{{"name":"{name}","description":"{said}","inputSchema":{{"type":"object"}}}}"#)
        };
        let pinned = pin(&[tool("a", "x"), tool("b", "x"), tool("c", "x")].join(","));
        let seen = pin(&[tool("a", "x"), tool("b", "y"), tool("d", "x")].join(","));
        let told: Vec<_> = compare(Some(&pinned), &seen)
            .into_iter()
            .map(|one| format!("{} {} {}", one.tool, one.state, one.differs.join("+")))
            .collect();
        assert_eq!(told, ["a same ", "b changed description", "d new ", "c gone "]);
        assert!(compare(None, &seen).iter().all(|one| one.state == "new"));
    }
}
