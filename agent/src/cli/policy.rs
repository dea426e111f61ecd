//! `strait policy`: check, explain and lay out policies. Reads files only, so it works with no agent running.

mod call;
mod cases;

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, anyhow, bail};
use clap::{Subcommand, ValueHint};
use strait_contract::ids::AgentName;
use strait_policies::{Explanation, Pin, PolicyFile, Snapshot, Verdict, is_pin, read_dir, url::Names};

use self::call::Misread;
use crate::instance::Instance;

/// Check, explain and lay out policies
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Check(Check),
    Explain(Box<Explain>),
    Test(cases::Test),
    Fmt(Fmt),
    Schema(Schema),
}

/// Print the Cedar schema that policies are checked against, pinned tools included
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: strait policy schema > strait.cedarschema   # for an editor's Cedar support"
)]
struct Schema {
    /// Policy folder [default: policies of the instance]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    policies: Option<PathBuf>,
}

/// Check a policy folder as the agent would load it
///
/// Exit status: 0 if the set would be used, 1 if it is refused.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  strait policy check\n  strait policy check ./policies --json")]
struct Check {
    /// Folder with `*.cedar` and `guardrails/*.cedar` [default: policies of the instance]
    #[arg(value_hint = ValueHint::DirPath)]
    dir: Option<PathBuf>,
    /// Print the problems as one JSON object
    #[arg(long)]
    json: bool,
}

/// Say how a call would be decided, and why
///
/// Exit status: 0 if the call would be permitted, 1 if it would be refused or held.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  strait policy explain --agent coder --http 'GET https://api.github.com/repos/acme/x'
  strait policy explain --agent coder --tool github --http 'GET https://api.github.com/user'
  strait policy explain --agent coder --tool github/create_issue --arguments '{\"repo\": \"acme/x\"}'
  strait policy explain --agent coder --connect db.example.com:5432
  strait policy explain --agent coder --server-tool anthropic/web_search
  strait policy explain --agent coder --dns 'TXT example.com' --policies ./policies --json")]
struct Explain {
    /// Agent that would make the call
    #[arg(long)]
    agent: AgentName,
    /// Version of the agent
    #[arg(long, value_name = "VERSION", default_value = "1")]
    agent_version: String,
    /// Login name of the person who started the run
    #[arg(long, default_value = "root")]
    user: String,
    /// Label of the agent; may be repeated
    #[arg(long = "label", value_name = "LABEL")]
    labels: Vec<String>,
    #[command(flatten)]
    call: call::CallArgs,
    #[command(flatten)]
    process: call::ProcessArgs,
    /// Policy folder [default: policies of the instance]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    policies: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Lay out policy files in the one way Strait writes them itself
///
/// Exit status: 0 if all is well, 1 if a file isn't Cedar or, with --check, would change.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  strait policy fmt\n  strait policy fmt --check policies/coder.cedar")]
struct Fmt {
    /// Change nothing, name the files that would change
    #[arg(long)]
    check: bool,
    /// Files or folders [default: policies of the instance]
    #[arg(value_hint = ValueHint::AnyPath)]
    paths: Vec<PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// Files that can't be read or written, a call that can't be understood. Policies that are refused are no error
/// but an exit status.
pub fn run(args: &Args, instance: &Instance, names: &Names) -> Result<ExitCode> {
    match &args.verb {
        Verb::Check(check) => run_check(check, instance),
        Verb::Explain(explain) => run_explain(explain, instance, names),
        Verb::Fmt(fmt) => run_fmt(fmt, instance),
        Verb::Test(test) => cases::run(test, instance, names),
        Verb::Schema(schema) => run_schema(schema, instance),
    }
}

fn run_schema(schema: &Schema, instance: &Instance) -> Result<ExitCode> {
    let files = read(&folder(schema.policies.as_ref(), instance))?;
    let pins: Result<Vec<Pin>, _> = files.iter().filter(|file| is_pin(file)).map(Pin::parse).collect();
    match pins.and_then(|pins| strait_policies::schema_with(&pins)) {
        Ok(text) => {
            write!(std::io::stdout(), "{text}")?;
            Ok(ExitCode::SUCCESS)
        }
        Err(refused) => {
            writeln!(std::io::stderr(), "{refused}")?;
            Ok(ExitCode::FAILURE)
        }
    }
}

fn folder(given: Option<&PathBuf>, instance: &Instance) -> PathBuf {
    given.cloned().unwrap_or_else(|| instance.config_dir.join("policies"))
}

/// The files of `dir` under names that an editor can open.
fn read(dir: &Path) -> Result<Vec<PolicyFile>> {
    let mut files = read_dir(dir)?;
    for file in &mut files {
        file.name = dir.join(&file.name).display().to_string();
    }
    Ok(files)
}

fn run_check(check: &Check, instance: &Instance) -> Result<ExitCode> {
    let dir = folder(check.dir.as_ref(), instance);
    let files = read(&dir)?;
    let mut out = std::io::stdout();
    match Snapshot::compile(&files, 0) {
        Ok(snapshot) if check.json => {
            let pinned = snapshot.pins().iter().map(|pin| pin.tools.len()).sum::<usize>();
            let summary = serde_json::json!({
                "problems": [], "unlisted": 0, "files": files.len(), "rules": snapshot.rules(),
                "pinnedTools": pinned, "digest": snapshot.digest(),
            });
            writeln!(out, "{summary}")?;
        }
        Ok(snapshot) if snapshot.rules() == 0 => {
            writeln!(out, "no rules in `{}`: everything is refused", dir.display())?;
        }
        Ok(snapshot) => {
            let (rules, digest) = (snapshot.rules(), snapshot.digest());
            writeln!(out, "{rules} rules in {} files, digest {digest}", files.len())?;
        }
        Err(refused) if check.json => {
            writeln!(out, "{}", refused.to_json())?;
            return Ok(ExitCode::FAILURE);
        }
        Err(refused) => {
            writeln!(std::io::stderr(), "{refused}")?;
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn run_explain(explain: &Explain, instance: &Instance, names: &Names) -> Result<ExitCode> {
    let files = read(&folder(explain.policies.as_ref(), instance))?;
    let snapshot = match Snapshot::compile(&files, 0) {
        Ok(snapshot) => snapshot,
        Err(refused) => {
            writeln!(std::io::stderr(), "{refused}")?;
            return Ok(ExitCode::FAILURE);
        }
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is before 1970")?;
    let run = call::run_info(&explain.agent, &explain.agent_version, &explain.user, &explain.labels)?;
    let call = match explain.call.read(names) {
        Ok(call) => call,
        Err(Misread::Refused(verdict)) => return unreadable(explain, &snapshot, verdict),
        Err(Misread::Usage(why)) => bail!(why),
    };
    let process = explain.process.read();
    let question = call.question(&run, u64::try_from(now.as_millis())?, process.as_ref());
    let explanation = snapshot.explain(&question);
    let mut out = std::io::stdout();
    if explain.json {
        writeln!(out, "{}", serde_json::to_string(&explanation)?)?;
    } else {
        writeln!(out, "{explanation}")?;
        if explanation.verdict.is_unpermitted() {
            let more = match &question.ask {
                strait_policies::Ask::Tool(_) => ", with any arguments",
                strait_policies::Ask::McpMethod { .. } => ", with any parameters",
                strait_policies::Ask::ServerTool(_) => ", whatever it is asked",
                _ => "",
            };
            writeln!(out, "\nthis rule would permit it{more}:\n\n{}", strait_policies::suggest(&question))?;
        }
    }
    let permitted = matches!(explanation.verdict, Verdict::Permit { .. });
    Ok(if permitted { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A call that the gateway refuses as it reads it, before any rule is asked.
fn unreadable(explain: &Explain, snapshot: &Snapshot, verdict: Verdict) -> Result<ExitCode> {
    let mut out = std::io::stdout();
    if explain.json {
        let (request, policy) = (String::new(), snapshot.digest().to_owned());
        let explanation = Explanation { request, candidates: Vec::new(), verdict, policy };
        writeln!(out, "{}", serde_json::to_string(&explanation)?)?;
    } else {
        writeln!(out, "{verdict}\nno rule is asked about it")?;
    }
    Ok(ExitCode::FAILURE)
}

fn run_fmt(fmt: &Fmt, instance: &Instance) -> Result<ExitCode> {
    let mut files = Vec::new();
    let default = [folder(None, instance)];
    let paths = if fmt.paths.is_empty() { default.as_slice() } else { &fmt.paths };
    for path in paths {
        if path.is_dir() {
            files.extend(read(path)?.into_iter().filter(|file| !is_pin(file)));
        } else {
            let text = std::fs::read_to_string(path).with_context(|| format!("`{}`", path.display()))?;
            files.push(PolicyFile { name: path.display().to_string(), guardrail: false, text });
        }
    }
    let mut status = ExitCode::SUCCESS;
    for file in files {
        match strait_policies::format(&file) {
            Ok(text) if text == file.text => {}
            Ok(_) if fmt.check => {
                writeln!(std::io::stdout(), "{}", file.name)?;
                status = ExitCode::FAILURE;
            }
            Ok(text) => replace(Path::new(&file.name), &text)?,
            Err(refused) => {
                writeln!(std::io::stderr(), "{refused}")?;
                status = ExitCode::FAILURE;
            }
        }
    }
    Ok(status)
}

/// Puts `text` in place of a file at once: a reload never sees half of it.
fn replace(path: &Path, text: &str) -> Result<()> {
    let failed = || format!("`{}` can't be written", path.display());
    // A link is written through, not replaced.
    let path = std::fs::canonicalize(path).with_context(failed)?;
    let name = path.file_name().ok_or_else(|| anyhow!("`{}` is not a file", path.display()))?;
    let beside = path.with_file_name(format!(".{}.new", name.to_string_lossy()));
    let permissions = std::fs::metadata(&path).with_context(failed)?.permissions();
    std::fs::write(&beside, text).with_context(failed)?;
    std::fs::set_permissions(&beside, permissions).with_context(failed)?;
    std::fs::rename(&beside, &path).with_context(failed)
}
