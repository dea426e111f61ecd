//! Gateways for models that others make, from PyPI and npm: large, so only `--peers` installs them.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context, Result, bail};

use super::peers::{Ground, Peer};
use crate::{
    exec,
    lab::internet::{BENCH, MODEL},
    workspace,
};

/// Ports of the gateways on the uplink's loopback.
pub(super) const LITELLM: u16 = 4000;
pub(super) const PORTKEY: u16 = 8787;

const PIP: &str = "litellm[proxy]==1.89.7";
const NPM: &str = "@portkey-ai/gateway@1.15.2";

fn folder() -> PathBuf {
    workspace::target().join("clients/bench")
}

/// Installs both, if these very versions aren't there.
pub(super) fn install() -> Result<()> {
    let (folder, versions) = (folder(), format!("{PIP}\n{NPM}"));
    let ready = folder.join("ready");
    if fs::read_to_string(&ready).is_ok_and(|found| found == versions) {
        return Ok(());
    }
    fs::create_dir_all(&folder).with_context(|| format!("can't make `{}`", folder.display()))?;
    fs::write(folder.join("package.json"), r#"{"private":true}"#)?;
    // Scripts of packages are not run: nobody has looked at them.
    let npm = ["install", "--no-audit", "--no-fund", "--ignore-scripts", "--no-save"];
    exec::run(Command::new("npm").current_dir(&folder).args(npm).arg(NPM))?;
    exec::run(Command::new("python3").current_dir(&folder).args(["-m", "venv", "py"]))?;
    let pip = ["-m", "pip", "install", "-q", "--disable-pip-version-check"];
    exec::run(Command::new(folder.join("py/bin/python")).args(pip).arg(PIP))?;
    fs::write(ready, versions)?;
    Ok(())
}

impl Ground<'_> {
    /// LiteLLM's proxy with one worker and no log of calls.
    pub(super) fn litellm(&self) -> Result<Peer> {
        let conf = format!(
            "model_list:\n  - model_name: gpt-5-mini\n    litellm_params:\n      model: openai/gpt-5-mini\n      \
             api_base: http://{}:{MODEL}/v1\n      api_key: none\nlitellm_settings:\n  telemetry: false\n",
            BENCH.1
        );
        let conf = self.write("litellm.yaml", &conf)?;
        let program = folder().join("py/bin/litellm");
        if !program.exists() {
            bail!("`{}` isn't there: remove `{}` and try again", program.display(), folder().display());
        }
        let program = program.display().to_string();
        let mut litellm = self.uplink(&program);
        // Its list of prices is from the package: there is no other way out.
        litellm.env("LITELLM_LOCAL_MODEL_COST_MAP", "True").env("LITELLM_LOG", "ERROR");
        litellm.args(["--host", "127.0.0.1", "--port", &LITELLM.to_string(), "--num_workers", "1"]);
        litellm.arg("--config").arg(conf);
        let peer = self.start(litellm, &program)?;
        self.wait_for_port(LITELLM)?;
        Ok(peer)
    }

    /// Portkey's gateway, one process.
    pub(super) fn portkey(&self) -> Result<Peer> {
        let mut portkey = self.uplink("node");
        portkey.arg(folder().join("node_modules/@portkey-ai/gateway/build/start-server.js"));
        portkey.args(["--headless", &format!("--port={PORTKEY}")]).env("NODE_ENV", "production");
        let peer = self.start(portkey, "node")?;
        self.wait_for_port(PORTKEY)?;
        Ok(peer)
    }
}
