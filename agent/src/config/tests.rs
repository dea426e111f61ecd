use strait_contract::tool::Kind;

use super::*;

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(text, Path::new("/etc/strait/strait.toml"))
}

#[test]
fn an_empty_file_is_the_installed_instance() {
    let config = parse("").unwrap();
    assert_eq!(config.instance.run_dir, Path::new("/run/strait"));
    assert_eq!(config.instance.config_dir, Path::new("/etc/strait"));
    assert_eq!(config.network.resolver, Resolver::System);
    assert!(config.network.system_anchors && config.network.hosts.is_empty());
    assert_eq!(config.limits, Limits::default());
    assert_eq!(config.agent(&"any".parse().unwrap()).version, "0");
}

#[test]
fn every_section_is_read_and_names_are_canonical() {
    let config = parse(
        r#"
        [instance]
        name = "demo-1"
        dial_netns = "/run/demo-1/netns/internet"
        gateway_uid = 1234
        [network]
        pool = "10.77.0.0/20"
        resolver = ["192.0.2.1", "[2001:db8::1]:5353"]
        proxy = "http://Proxy.corp.test:3128"
        passthrough = ["Pinned.TEST."]
        doh = ["dns.test"]
        system_trust = false
        [hosts]
        "DB.internal." = "10.1.2.3"
        two = ["10.1.2.4", "fd00::1"]
        [limits]
        idle_seconds = 60
        [log]
        sync_ms = 5
        [agents.coder]
        version = "3"
        labels = ["team:web"]
        env = { EDITOR = "vi" }
        pass_env = ["LC_ALL"]
        addresses = ["203.0.113.0/24", "198.51.100.7"]
        "#,
    )
    .unwrap();
    assert_eq!(config.instance.run_dir, Path::new("/run/demo-1"));
    assert_eq!(config.instance.gateway(), std::net::Ipv4Addr::new(10, 77, 0, 1));
    assert_eq!(config.network.passthrough, ["pinned.test"]);
    assert_eq!(config.network.hosts.len(), 3);
    assert_eq!(config.network.hosts[0], ("db.internal".into(), "10.1.2.3".parse().unwrap()));
    assert_eq!(
        config.network.resolver,
        Resolver::Servers(vec!["192.0.2.1:53".parse().unwrap(), "[2001:db8::1]:5353".parse().unwrap()])
    );
    let proxy = config.network.proxy.as_ref().unwrap();
    assert_eq!((proxy.host.as_str(), proxy.port), ("proxy.corp.test", 3128));
    assert_eq!((config.limits.idle_seconds, config.log.sync_ms), (60, 5));
    let coder = config.agent(&"coder".parse().unwrap());
    assert_eq!((coder.version.as_str(), coder.addresses.len()), ("3", 2));
    assert_eq!(coder.addresses[1].prefix, 32);
}

/// Case 82 and relatives: what is refused, and that the message leads to the place.
#[test]
fn what_is_wrong_is_refused_with_file_line_and_key() {
    for (text, line, says) in [
        ("[network]\nresolvr = \"system\"", Some(2), "resolvr"),
        ("[netwrk]\n", Some(1), "netwrk"),
        ("[network]\npool = \"10.0.0.0/8\"\npool = \"10.0.0.0/8\"", Some(3), "duplicate key"),
        ("[network]\n[hosts]\n[network]", Some(3), "duplicate"),
        ("[agents.coder]\n[agents.coder]", Some(2), "duplicate"),
        ("[agents.Coder]\n", Some(1), "`Coder` is not a name"),
        ("[agents.coder]\nversions = 1", Some(2), "versions"),
        ("[agents.coder]\naddresses = [\"10.0.0.1/8\"]", Some(2), "write `10.0.0.0/8`"),
        ("[agents.coder]\nenv = { \"A=B\" = \"x\" }", Some(2), "environment variable"),
        ("[network]\npassthrough = [\"*.ok.test\"]", Some(2), "name each"),
        ("[network]\npassthrough = [\".ok.test\"]", Some(2), "name each"),
        ("[network]\npassthrough = [\"a..b\"]", Some(2), "isn't a host name"),
        ("[network]\npassthrough = [\"bücher.test\"]", Some(2), "xn--"),
        ("[network]\nresolver = \"sytem\"", Some(2), "`\"system\"`"),
        ("[network]\nresolver = []", Some(2), "empty"),
        ("[network]\nproxy = \"http://u:p@proxy:3128\"", Some(2), "proxy_credential"),
        ("[network]\nproxy = \"https://proxy:3128\"", Some(2), "plain HTTP"),
        ("[hosts]\n\"a.test\" = \"1.2.3.4\"\n\"A.test.\" = \"1.2.3.5\"", None, "named twice"),
        ("[hosts]\n\"a.test\" = \"nowhere\"", Some(2), "an address"),
        ("[network]\nresolver = \"proxy\"", None, "names none"),
        ("[network]\nproxy_credential = \"hunter2\"", None, "by reference"),
        (
            "[network]\nresolver = \"proxy\"\nproxy = \"p.test:1\"\n[tools.web]\nkind = \"web\"",
            None,
            "public addresses only",
        ),
        ("[network]\nproxy_credential = \"env:STRAIT_TEST_UNSET\"", None, "isn't set"),
        ("[network]\ntrust = [\"/nonexistent.pem\"]", None, "/nonexistent.pem"),
        ("[instance]\ngateway_uid = 0", None, "must not be"),
        ("[instance]\nrun_dir = \"relative\"", None, "absolute"),
        ("[instance]\ncgroup = \"a/../b\"", None, "folder name"),
        ("[limits]\nhead_bytes = 1", None, "limits.head_bytes"),
        ("[log]\nsync_ms = 1000", None, "log.sync_ms"),
        ("[retention]\ndays = 7", Some(1), "retention"),
        ("not toml", Some(1), "TOML"),
    ] {
        let message = parse(text).err().unwrap_or_else(|| panic!("accepted: {text}")).to_string();
        assert!(message.contains("/etc/strait/strait.toml") || message.contains("/nonexistent"), "{message}");
        assert!(message.contains(says), "{text}: {message}");
        if let Some(line) = line {
            assert!(message.contains(&format!("line {line}")), "{text}: {message}");
        }
        assert!(!message.contains("hunter2"), "{message}");
    }
}

#[test]
fn credentials_and_anchors_are_read_from_closed_files() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("secret");
    fs::write(&secret, "user:hunter2\n").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(dir.path().join("ca.pem"), "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n")
        .unwrap();
    let text = format!(
        "[network]\nproxy = \"p.test:1\"\nproxy_credential = \"file:{}\"\ntrust = [\"ca.pem\"]",
        secret.display()
    );
    let path = dir.path().join("strait.toml");
    fs::write(&path, &text).unwrap();
    let config = Config::load(Some(dir.path())).unwrap();
    let proxy = config.network.proxy.as_ref().unwrap();
    assert_eq!(proxy.credential.as_ref().unwrap().expose(), "user:hunter2");
    assert!(!format!("{config:?}").contains("hunter2"));
    assert!(config.network.anchors.contains("BEGIN CERTIFICATE"));
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(Config::load(Some(&path)).unwrap_err().to_string().contains("chmod 600"));
    fs::remove_file(&path).unwrap();
    assert!(matches!(Config::load(Some(&path)), Err(ConfigError::File { .. })), "a named file must be there");
}

#[test]
fn a_tool_with_a_credential_is_less_than_ten_lines() {
    let config = parse(
        r#"
        [credentials.github]
        from = "file:/etc/strait/secrets/github"
        send = "bearer"
        [tools.github]
        kind = "http"
        url = "https://API.github.com"
        credential = "github"
        headers = { Accept = "application/vnd.github+json" }
        "#,
    )
    .unwrap();
    let tool = &config.tools.tools[0];
    assert_eq!(tool.kind, Kind::Http { url: "https://api.github.com/".into() });
    assert_eq!(tool.headers, [("accept".to_owned(), "application/vnd.github+json".to_owned())]);
    let bound = tool.credential.as_ref().unwrap();
    assert_eq!((bound.name.as_str(), bound.ttl_seconds), ("github", 300));
    assert_eq!(bound.send, Placement::Header { name: "authorization".into(), format: "Bearer {}".into() });
    assert_eq!(
        config.credentials.values().next().unwrap().from,
        Reference::File("/etc/strait/secrets/github".into())
    );
    assert!(
        config.credential(&"github".parse().unwrap()).unwrap_err().contains("/etc/strait/secrets/github")
    );
    assert!(config.credential(&"other".parse().unwrap()).unwrap_err().contains("[credentials.other]"));
}

#[test]
fn every_kind_of_tool_and_place_is_read() {
    let config = parse(
        r#"
        [hosts]
        "intern.corp.example" = "10.0.0.7"
        [credentials.a]
        from = "env:A"
        send = { header = "X-Api-Key", format = "token {}" }
        ttl = "90s"
        [credentials.b]
        from = "exec:/usr/bin/secret get b"
        send = { query = "key" }
        [credentials.c]
        from = "systemd:c"
        send = { basic = "bot" }
        [credentials.d]
        from = "env:D"
        send = { aws = { region = "eu-central-1", service = "s3" } }
        [tools.web]
        kind = "web"
        [tools.intern]
        kind = "http"
        url = "http://intern.corp.example:8080/api/"
        credential = "a"
        [tools.every_thing]
        kind = "mcp"
        url = "https://mcp.example.com/mcp"
        credential = "c"
        methods = ["resources", "prompts"]
        [agents.coder]
        tools = ["web", "intern"]
        [agents.writer]
        "#,
    )
    .unwrap();
    let kinds: Vec<_> =
        config.tools.tools.iter().map(|tool| (tool.name.as_str(), tool.kind.as_str())).collect();
    assert_eq!(kinds, [("every_thing", "mcp"), ("intern", "http"), ("web", "web")]);
    assert_eq!(config.tools.agents.len(), 1, "an agent without a list may address all");
    assert_eq!(config.tools.agents[0].1.len(), 2);
    let sends: Vec<_> = config.credentials.values().map(|one| (&one.send, one.ttl_seconds)).collect();
    assert_eq!(sends[0], (&Placement::Header { name: "x-api-key".into(), format: "token {}".into() }, 90));
    assert_eq!(sends[1].0, &Placement::Query { name: "key".into() });
    assert_eq!(sends[2].0, &Placement::Basic { user: "bot".into() });
    assert_eq!(sends[3].0, &Placement::Aws { region: "eu-central-1".into(), service: "s3".into() });
    let odd =
        parse("[credentials.d]\nfrom = \"env:D\"\nsend = { aws = { region = \"eu/x\", service = \"s3\" } }");
    assert!(odd.unwrap_err().to_string().contains("`eu/x`"));
}

#[test]
fn tools_and_credentials_that_do_not_hold_are_refused_with_their_key() {
    let tool = |rest: &str| format!("[credentials.k]\nfrom = \"env:K\"\n[tools.t]\n{rest}");
    let credential = |rest: &str| format!("[credentials.k]\n{rest}");
    for (text, says) in [
        (tool("kind = \"http\""), "`tools.t`: `url` is missing"),
        (tool("kind = \"soap\""), "soap"),
        (tool("kind = \"http\"\nurl = \"ftp://a.test\""), "`tools.t`: `url`"),
        (tool("kind = \"http\"\nurl = \"https://a.test/?x=1\""), "has a query"),
        (tool("kind = \"http\"\nurl = \"https://u:p@a.test/\""), "`url`"),
        (
            tool("kind = \"http\"\nurl = \"https://a.test\"\ncredential = \"other\""),
            "there is no `[credentials.other]`",
        ),
        (tool("kind = \"http\"\nurl = \"http://a.test\"\ncredential = \"k\""), "in the clear"),
        (tool("kind = \"web\"\nurl = \"https://a.test\""), "a web tool has no `url`"),
        (tool("kind = \"web\"\ncredential = \"k\""), "any page would get it"),
        (tool("kind = \"web\"\nmethods = []"), "`methods` is for"),
        (tool("kind = \"mcp\"\nurl = \"https://a.test\"\nmethods = [\"tools\"]"), "it may name resources"),
        (tool("kind = \"web\"\nheaders = { Host = \"x\" }"), "set by the gateway itself"),
        (tool("kind = \"web\"\nheaders = { \"a b\" = \"x\" }"), "isn't a header's name"),
        (tool("kind = \"web\"\nheaders = { A = \"x\\ny\" }"), "one line"),
        (tool("kind = \"web\"\nheaders = { A = \"x\", a = \"y\" }"), "there twice"),
        (
            tool(
                "kind = \"http\"\nurl = \"https://a.test\"\ncredential = \"k\"\nheaders = { authorization = \"x\" }",
            ),
            "where the credential goes",
        ),
        ("[tools.T]\nkind = \"web\"".to_owned(), "`T` is not a name"),
        ("[tools.t]\nkind = \"web\"\nurll = \"x\"".to_owned(), "urll"),
        ("[agents.coder]\ntools = [\"github\"]".to_owned(), "there is no `[tools.github]`"),
        (credential("from = \"hunter2\""), "`credentials.k.from`: a credential is named by reference"),
        (credential("from = \"env:K\"\nsend = \"basic\""), "bearer"),
        (credential("from = \"env:K\"\nsend = { header = \"x\", query = \"y\" }"), "bearer"),
        (
            credential("from = \"env:K\"\nsend = { header = \"x\", format = \"no place\" }"),
            "`format` must have `{}` once",
        ),
        (credential("from = \"env:K\"\nsend = { header = \"connection\" }"), "set by the gateway itself"),
        (credential("from = \"env:K\"\nsend = { query = \"a&b\" }"), "query parameter"),
        (credential("from = \"env:K\"\nsend = { basic = \"a:b\" }"), "without colon"),
        (credential("from = \"env:K\"\nttl = \"5 minutes\""), "`90s`"),
        (credential("from = \"env:K\"\nttl = \"0s\""), "`credentials.k.ttl`"),
        (credential("value = \"x\""), "value"),
    ] {
        let message = parse(&text).err().unwrap_or_else(|| panic!("accepted: {text}")).to_string();
        assert!(message.contains("/etc/strait/strait.toml") && message.contains(says), "{text}: {message}");
        assert!(!message.contains("hunter2"), "{message}");
    }
    // A host that the operator names may have it in the clear.
    let named = "[hosts]\n\"a.test\" = \"10.0.0.1\"\n".to_owned()
        + &tool("kind = \"http\"\nurl = \"http://a.test\"\ncredential = \"k\"");
    parse(&named).unwrap();
}

/// What the README tells a newcomer to write is a config.
#[test]
fn the_tool_of_the_readme_is_less_than_ten_lines_and_loads() {
    let (_, readme) = include_str!("../../README.md").split_once("\n## Tools\n").unwrap();
    let block = |language: &str| {
        let (_, rest) = readme.split_once(&format!("```{language}\n")).unwrap();
        rest.split_once("```").unwrap().0.to_owned()
    };
    let (config, policy) = (block("toml"), block("cedar"));
    let lines = config.lines().chain(policy.lines()).filter(|line| !line.trim().is_empty()).count();
    assert!(lines < 10, "{lines} lines");
    let config = parse(&config).unwrap();
    assert_eq!(config.tools.tools[0].name.as_str(), "github");
    let file =
        strait_contract::message::PolicyFile { name: "github.cedar".into(), guardrail: false, text: policy };
    let rules = strait_policies::Snapshot::compile(&[file], 1).unwrap();
    assert_eq!(rules.named_tools().collect::<Vec<_>>(), ["github"]);
}

#[test]
fn how_people_are_asked_is_read_and_a_webhook_is_a_command() {
    let config = parse("").unwrap().approvals;
    assert_eq!((config.mode, config.timeout.as_secs(), config.per_run), (ApprovalMode::Hold, 600, 100));
    let config = parse(
        "[approvals]\nmode = \"refuse\"\ntimeout = \"90s\"\nper_run = 5\nnotify = { command = [\"/bin/x\", \"a\"] }",
    );
    let config = config.unwrap().approvals;
    assert_eq!((config.mode, config.timeout.as_secs(), config.per_run), (ApprovalMode::Refuse, 90, 5));
    assert_eq!(config.notify, ["/bin/x", "a"]);
    for (text, part) in [
        ("notify = { url = \"https://a.test\" }", "curl"),
        ("notify = { command = [] }", "curl"),
        ("notify = { command = [\"x\"] }", "absolute path"),
        ("mode = \"maybe\"", "mode"),
        ("timeout = \"soon\"", "10m"),
        ("per_run = 0", "per_run"),
        ("who = \"ana\"", "who"),
    ] {
        let refused = parse(&format!("[approvals]\n{text}")).unwrap_err().to_string();
        assert!(refused.contains(part), "{text}: {refused}");
    }
}

#[test]
fn budgets_are_read_and_what_is_no_amount_is_refused_with_its_key_a18() {
    use strait_contract::budget::{Budget, Limits};
    use strait_contract::model::Usd;

    let config = parse(
        r#"
        [agents.coder.budget]
        run = { usd = 5.0, tokens = 2_000_000, calls = 500 }
        day = { usd = 50 }
        [agents.other]
        "#,
    )
    .unwrap();
    let run = Limits { usd: Some(Usd(5_000_000_000)), tokens: Some(2_000_000), calls: Some(500) };
    let day = Limits { usd: Some(Usd(50_000_000_000)), ..Limits::default() };
    let budget = Budget { run, day, total: Limits::default() };
    assert_eq!(config.budgets(), BTreeMap::from([("coder".parse().unwrap(), budget)]));
    for (text, says) in [
        ("run = { usd = -1.0 }", "`agents.coder.budget.run.usd` is -1"),
        ("day = { usd = nan }", "`agents.coder.budget.day.usd`"),
        ("run = { tokens = -1 }", "tokens"),
        ("run = { dollars = 1 }", "unknown field `dollars`"),
        ("week = { usd = 1 }", "unknown field `week`"),
    ] {
        let error = parse(&format!("[agents.coder.budget]\n{text}")).unwrap_err().to_string();
        assert!(error.contains(says), "{text}: {error}");
    }
}

#[test]
fn providers_are_read_with_the_place_that_their_api_has_for_a_key_a15() {
    use strait_contract::provider::{Content, Dialect};

    let config = parse(
        r#"
        [credentials.openai]
        from = "env:X"
        [credentials.own]
        from = "env:X"
        send = { header = "x-own", format = "{}" }
        [hosts]
        "gpu.lan" = "10.1.2.3"
        [providers.openai]
        api = "openai"
        credential = "openai"
        allow = ["files"]
        content = "hash"
        [providers.claude]
        api = "anthropic"
        url = "https://claude.test/prefix"
        credential = "openai"
        intercept = false
        [providers.eos]
        api = "openai"
        url = "http://gpu.lan:8000/v1"
        [providers.placed]
        api = "gemini"
        credential = "own"
        [agents.coder]
        models = ["openai/gpt-5*", "*/small"]
        [prices."eos/llama"]
        input = 0.1
        output = 0.2
        "#,
    )
    .unwrap();
    let all = &config.providers;
    let of = |name: &str| all.providers.iter().find(|provider| provider.name.as_str() == name).unwrap();
    let openai = of("openai");
    assert_eq!(
        (openai.url.as_str(), openai.intercept, openai.content),
        ("https://api.openai.com/", true, Content::Hash)
    );
    assert_eq!(openai.credential.as_ref().unwrap().send, Dialect::OpenAi.placement());
    let claude = of("claude");
    assert_eq!((claude.url.as_str(), claude.intercept), ("https://claude.test/prefix", false));
    assert_eq!(claude.credential.as_ref().unwrap().send, Dialect::Anthropic.placement());
    assert!(of("eos").credential.is_none());
    let own = Placement::Header { name: "x-own".into(), format: "{}".into() };
    assert_eq!(of("placed").credential.as_ref().unwrap().send, own);
    assert_eq!(
        all.agents,
        [("coder".parse().unwrap(), vec!["openai/gpt-5*".to_owned(), "*/small".to_owned()])]
    );
    assert!(all.rules.contains("llama"), "{}", all.rules);
    for (text, says) in [
        ("[providers.x]", "missing field `api`"),
        ("[providers.x]\napi = \"cohere\"", "unknown variant `cohere`"),
        ("[providers.X]\napi = \"openai\"", "`providers.X`"),
        ("[providers.x]\napi = \"openai\"\ncredential = \"nope\"", "no `[credentials.nope]`"),
        ("[providers.x]\napi = \"openai\"\nallow = [\"everything\"]", "`allow` names `everything`"),
        ("[providers.x]\napi = \"openai\"\nurl = \"https://a.test/?q\"", "has a query"),
        (
            "[credentials.k]\nfrom = \"env:X\"\n[providers.x]\napi = \"openai\"\nurl = \"http://a.test\"\ncredential = \"k\"",
            "in the clear",
        ),
        (
            "[network]\npassthrough = [\"api.openai.com\"]\n[providers.x]\napi = \"openai\"",
            "`network.passthrough` has it",
        ),
        ("[agents.coder]\nmodels = [\"openai/x\"]", "no `[providers.openai]`"),
        ("[prices.x]\ninput = 1", "`prices`"),
        ("[prices.\"openai/x\"]\ninput = -1", "`prices`"),
    ] {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(says), "{text}: {error}");
    }
}
