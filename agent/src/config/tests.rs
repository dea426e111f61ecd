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
