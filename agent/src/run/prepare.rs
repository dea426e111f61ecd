//! What a run is made of before anything of it lives: its bundle, its private home, the file by which a later agent
//! finds it.

use std::{io, path::PathBuf};

use strait_contract::{exposure::Exposed, run::RunInfo};

use super::{
    Runs,
    bundle::{self, Bind, Plan},
    cgroup::RunCgroup,
    environment, exposure,
    folder::Folder,
    home,
    live::{self, Live},
    models,
    mounts::Admitted,
    order::{Order, StartError},
    start::Identity,
};
use crate::{
    config::AgentConfig,
    log,
    netns::{RunNetns, Veth},
};

/// Longest command line that lists show, bytes.
const COMMAND_SHOWN: usize = 200;

impl Runs {
    /// Folder, mounts, home, `config.json`.
    pub(super) fn bundle_run(
        &self,
        identity: &Identity,
        order: &Order,
        profile: &AgentConfig,
        exposed: &[Exposed],
        admitted: &[Admitted],
        cwd: Option<PathBuf>,
    ) -> Result<Folder, StartError> {
        let parts = &self.parts;
        let folder = Folder::of(&parts.instance, identity.id.as_str());
        folder.create()?;
        exposure::keep(&folder, exposed)?;
        let mut binds = Vec::new();
        for (index, mount) in admitted.iter().enumerate() {
            binds.push(Bind::stage(&folder, index, mount)?);
        }
        let home = home::prepare(&parts.instance, &order.account, &identity.agent, admitted)?;
        let mut configured: Vec<(String, String)> =
            profile.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        let picked = order.offered_env.iter().filter(|(name, _)| profile.pass_env.contains(name)).cloned();
        configured.extend(picked);
        let models = models::variables(&parts.config.borrow().providers, identity.token.as_str());
        let env = environment::variables(&environment::Sources {
            run: identity.id.as_str(),
            agent: identity.agent.as_str(),
            account: &order.account,
            token: identity.token.as_str(),
            trust: &parts.trust,
            program_path: &order.program_path,
            models: &models,
            configured: &configured,
            asked: &order.env,
            exposed,
        });
        let plan = Plan {
            run: &identity.id,
            agent: &identity.agent,
            account: &order.account,
            argv: &order.argv,
            env,
            cwd: cwd.unwrap_or_else(|| order.account.home.clone()),
            terminal: order.terminal,
            gateway: parts.instance.gateway(),
            netns: parts.instance.run_netns(identity.id.as_str()),
            cgroup: RunCgroup::oci_path(&parts.instance, identity.id.as_str()),
            tool: parts.instance.lib_dir.join("strait-tool"),
            home,
            trust: &parts.trust,
            binds,
        };
        bundle::write(&folder, &plan)?;
        Ok(folder)
    }
}

/// What is known of a run whose gate is up and whose processes are still to come.
pub(super) fn live_of(
    info: &RunInfo,
    order: &Order,
    workspace: Option<PathBuf>,
    netns: &RunNetns,
    veth: &Veth,
    veth_index: u32,
) -> io::Result<Live> {
    let mut command = order.argv.join(" ");
    if command.len() > COMMAND_SHOWN {
        let end = (0..=COMMAND_SHOWN).rev().find(|end| command.is_char_boundary(*end)).unwrap_or(0);
        command.truncate(end);
        command.push('…');
    }
    Ok(Live {
        boot: live::boot_id()?,
        id: info.id.clone(),
        number: info.number,
        addr: info.addr,
        agent: info.agent.to_string(),
        version: info.version.clone(),
        labels: info.labels.clone(),
        addresses: info.addresses.iter().map(|range| (range.addr, range.prefix)).collect(),
        token: info.token,
        user: order.account.name.clone(),
        uid: order.account.uid,
        gid: order.account.gid,
        command: strait_contract::redact::redact_text(&command, COMMAND_SHOWN * 2),
        workspace,
        started_ms: log::now_ms(),
        netns_cookie: netns.cookie,
        veth_index,
        veth_ifindex: veth.ifindex,
        init: None,
        shim: None,
        killed_by: None,
    })
}
