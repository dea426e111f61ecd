//! Names to addresses, asked of the operator's servers.
//!
//! Takes a canonical name, gives every address its answer holds. A and AAAA are asked together, CNAME chains are
//! followed to a depth of eight, truncated answers are asked again over TCP. Search domains and the hosts file are
//! never used. What is given here is **not** vetted: [`super::dial`] vets all of it and dials what it vetted, so
//! a second answer can't swap the address (case 49).

use std::{
    net::{IpAddr, SocketAddr},
    num::NonZeroUsize,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use hickory_resolver::{
    TokioResolver,
    config::{
        ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
    },
    lookup::Lookup,
    net::{DnsError, NetError, runtime::TokioRuntimeProvider},
    proto::{op::ResponseCode, rr::RecordType},
};
use strait_contract::message;

use crate::url::Name;

/// Names in the cache.
const NAMES: NonZeroUsize = NonZeroUsize::new(4096).unwrap();
/// An answer is kept as long as its TTL says, within these bounds.
const KEEP: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(60);
/// How long "no such name" is kept.
const KEEP_ABSENT: Duration = Duration::from_secs(3);
/// How long a failure of the servers is kept, so that a storm of requests isn't a storm of queries.
const KEEP_FAILED: Duration = Duration::from_millis(500);
/// Time for one try at one server; there are two tries.
const TRY: Duration = Duration::from_secs(2);

/// Why a name has no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// NXDOMAIN.
    #[error("`{0}` does not exist")]
    Absent(Name),
    /// The name exists without A or AAAA.
    #[error("`{0}` has no address")]
    NoAddress(Name),
    /// No server answered in time.
    #[error("`{0}` could not be resolved in time: see `network.resolver`")]
    Timeout(Name),
    /// The servers failed, refused, or answered nonsense.
    #[error("`{name}` could not be resolved ({reason}): see `network.resolver`")]
    Failed {
        /// The name.
        name: Name,
        /// What the servers said.
        reason: String,
    },
}

/// A resolver with a small cache; lookups of one name at one time are one lookup.
pub struct Resolver {
    client: Result<TokioResolver, String>,
    cache: Mutex<lru::LruCache<Name, Arc<Slot>>>,
}

/// Held while a lookup is under way, so others of the same name wait for it. If the one who asks goes away,
/// the next in line asks.
type Slot = tokio::sync::Mutex<Option<Answer>>;

struct Answer {
    until: Instant,
    found: Result<Arc<[IpAddr]>, ResolveError>,
}

impl std::fmt::Debug for Resolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resolver").finish_non_exhaustive()
    }
}

impl Resolver {
    /// Sets up a resolver; `None` if the corporate proxy resolves. A host without a usable `/etc/resolv.conf`
    /// gets one that fails each lookup and says so.
    pub fn new(setting: &message::Resolver) -> Option<Self> {
        let client = match setting {
            message::Resolver::Proxy => return None,
            message::Resolver::Servers(servers) => client(from_servers(servers), ResolverOpts::default()),
            message::Resolver::System => hickory_resolver::system_conf::read_system_conf()
                .map_err(|error| format!("/etc/resolv.conf can't be used: {error}"))
                .and_then(|(config, options)| client(config, options)),
        };
        Some(Self { client, cache: Mutex::new(lru::LruCache::new(NAMES)) })
    }

    /// Every address of `name`, IPv4 first.
    ///
    /// # Errors
    /// See [`ResolveError`].
    pub async fn addresses(&self, name: &Name) -> Result<Arc<[IpAddr]>, ResolveError> {
        let slot = {
            let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
            cache.get_or_insert_ref(name, Arc::default).clone()
        };
        let mut slot = slot.lock().await;
        if let Some(answer) = slot.as_ref()
            && answer.until > Instant::now()
        {
            return answer.found.clone();
        }
        let answer = self.ask(name).await;
        let found = answer.found.clone();
        *slot = Some(answer);
        found
    }

    /// Records of any type, with the CNAMEs that led to them. Not cached.
    ///
    /// # Errors
    /// What the servers said.
    pub async fn records(&self, name: &str, record_type: RecordType) -> Result<Lookup, NetError> {
        match &self.client {
            Ok(client) => client.lookup(format!("{name}."), record_type).await,
            Err(reason) => Err(NetError::Msg(reason.clone())),
        }
    }

    async fn ask(&self, name: &Name) -> Answer {
        let asked = match &self.client {
            // The final dot keeps search domains out.
            Ok(client) => client.lookup_ip(format!("{name}.")).await,
            Err(reason) => Err(NetError::Msg(reason.clone())),
        };
        let now = Instant::now();
        match asked {
            Ok(lookup) => {
                let ttl = lookup.valid_until().saturating_duration_since(now);
                let mut found: Vec<IpAddr> = lookup.iter().collect();
                found.sort_by_key(IpAddr::is_ipv6);
                found.dedup();
                if found.is_empty() {
                    let error = ResolveError::NoAddress(name.clone());
                    return Answer { until: now + KEEP_ABSENT, found: Err(error) };
                }
                Answer { until: now + ttl.clamp(*KEEP.start(), *KEEP.end()), found: Ok(found.into()) }
            }
            Err(error) => {
                let error = explain(name, error);
                let keep = match error {
                    ResolveError::Absent(_) | ResolveError::NoAddress(_) => KEEP_ABSENT,
                    _ => KEEP_FAILED,
                };
                Answer { until: now + keep, found: Err(error) }
            }
        }
    }
}

fn from_servers(servers: &[SocketAddr]) -> ResolverConfig {
    let servers = servers.iter().map(|server| {
        let mut connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()];
        for connection in &mut connections {
            connection.port = server.port();
        }
        NameServerConfig::new(server.ip(), true, connections.into())
    });
    ResolverConfig::from_parts(None, Vec::new(), servers.collect::<Vec<_>>())
}

fn client(config: ResolverConfig, options: ResolverOpts) -> Result<TokioResolver, String> {
    if config.name_servers().is_empty() {
        return Err("no name server is configured".to_owned());
    }
    let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    let set = builder.options_mut();
    *set = options;
    set.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    set.use_hosts_file = ResolveHosts::Never;
    set.timeout = TRY;
    set.attempts = 1;
    // The cache here is ours; theirs would keep what ours has dropped.
    set.cache_size = 0;
    builder.build().map_err(|error| error.to_string())
}

fn explain(name: &Name, error: NetError) -> ResolveError {
    let name = name.clone();
    match error {
        NetError::Timeout => ResolveError::Timeout(name),
        NetError::Dns(DnsError::NoRecordsFound(none)) => match none.response_code {
            ResponseCode::NXDomain => ResolveError::Absent(name),
            ResponseCode::NoError => ResolveError::NoAddress(name),
            code => ResolveError::Failed { name, reason: code.to_string() },
        },
        NetError::Dns(DnsError::ResponseCode(code)) => {
            ResolveError::Failed { name, reason: code.to_string() }
        }
        error => ResolveError::Failed { name, reason: error.to_string() },
    }
}
