//! Which entities the loaded rules name, and which of them a resource belongs to.
//!
//! A resource is given to Cedar with all its named ancestors as direct parents. Ancestors that no rule names are
//! left out: Cedar can't make an entity out of text, so no rule can ask for them.

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap},
    net::{IpAddr, Ipv6Addr},
};

use cedar_policy::{EntityId, EntityTypeName, EntityUid};

use crate::{
    load::Rule,
    model::Model,
    question::{Ask, HttpAsk, ServerToolAsk, ToolAsk},
};

/// A named entity, by number.
pub(crate) type Node = u32;

/// A map with keys of the operator's, looked up with texts of a run's: nobody but the operator can fill it.
pub(crate) type Fixed<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// Every entity that the loaded rules name.
#[derive(Debug, Default)]
pub(crate) struct Names {
    uids: Vec<EntityUid>,
    by_uid: HashMap<EntityUid, Node>,
    /// Type, then id: so that a lookup borrows its text.
    by_type: Fixed<String, Fixed<String, Node>>,
    /// By name or literal address without brackets.
    spots: Fixed<String, Spot>,
    nets: Fixed<(IpAddr, u8), Node>,
    /// Prefix lengths in use, longest first.
    prefixes: BTreeSet<std::cmp::Reverse<u8>>,
    /// Whether rules name entities of these types at all.
    urls: bool,
    domains: bool,
}

/// What rules call one host: one lookup for all of it.
#[derive(Debug, Default)]
struct Spot {
    host: Option<Node>,
    domain: Option<Node>,
    endpoints: Vec<(u16, Node)>,
}

/// The named entities that a resource is or belongs to.
#[derive(Debug)]
pub(crate) struct Lineage {
    /// Itself, if it is named, and its named ancestors.
    pub(crate) nodes: Vec<Node>,
}

impl Names {
    pub(crate) fn of(rules: &[Rule]) -> Self {
        let mut names = Self::default();
        for uid in rules.iter().flat_map(|rule| rule.policy.entity_literals()) {
            names.add(uid);
        }
        names
    }

    fn add(&mut self, uid: EntityUid) {
        // More than 2^32 names don't fit in the size limits of policy files.
        let Ok(node) = Node::try_from(self.uids.len()) else { return };
        if self.by_uid.contains_key(&uid) {
            return;
        }
        let kind = uid.type_name().to_string();
        let id: &str = uid.id().unescaped();
        match kind.as_str() {
            "Net" => {
                if let Some((base, prefix)) = parse_net(id) {
                    self.nets.insert((base, prefix), node);
                    self.prefixes.insert(std::cmp::Reverse(prefix));
                }
            }
            "Host" => self.spots.entry(id.to_owned()).or_default().host = Some(node),
            "Domain" => {
                self.domains = true;
                self.spots.entry(id.to_owned()).or_default().domain = Some(node);
            }
            "Endpoint" => {
                if let Some((host, port)) = parse_endpoint(id) {
                    self.spots.entry(host.to_owned()).or_default().endpoints.push((port, node));
                }
            }
            "Url" => self.urls = true,
            _ => {}
        }
        self.by_type.entry(kind).or_default().insert(id.to_owned(), node);
        self.by_uid.insert(uid.clone(), node);
        self.uids.push(uid);
    }

    /// The number of a named entity.
    pub(crate) fn node(&self, uid: &EntityUid) -> Option<Node> {
        self.by_uid.get(uid).copied()
    }

    /// The entity of that number.
    pub(crate) fn uid(&self, node: Node) -> Option<&EntityUid> {
        self.uids.get(usize::try_from(node).ok()?)
    }

    /// Ids of all named entities of a type.
    pub(crate) fn of_type(&self, kind: &str) -> impl Iterator<Item = &str> {
        self.by_type.get(kind).into_iter().flat_map(|ids| ids.keys().map(String::as_str))
    }

    /// What the resource that `ask` is about is and belongs to. With [`resource`] the only place where a resource
    /// and its parents are made.
    pub(crate) fn lineage(&self, ask: &Ask<'_>) -> Lineage {
        let mut nodes = Vec::with_capacity(8);
        match ask {
            Ask::Http(http) => {
                self.endpoint(&Place::of(Some(http.host), http.address), http.port, &mut nodes);
                if self.urls {
                    nodes.extend(self.find("Url", &url(http)));
                }
                nodes.extend(http.tool.and_then(|tool| self.find("Tool", tool)));
            }
            Ask::Connect { host, address, port } => {
                self.endpoint(&Place::of(*host, *address), *port, &mut nodes);
            }
            Ask::Dns { name, .. } => {
                self.domains(name, &mut nodes);
                nodes.extend(self.find("Name", name));
            }
            Ask::Tool(ToolAsk { server, tool, .. }) => {
                nodes.extend(self.find("Tool", server));
                nodes.extend(self.find("Tool", &tool_id(server, tool)));
            }
            Ask::McpMethod { server, .. } => nodes.extend(self.find("Tool", server)),
            Ask::ServerTool(ServerToolAsk { provider, name, .. }) => {
                nodes.extend(self.find("Tool", provider));
                nodes.extend(self.find("ServerTool", &tool_id(provider, name)));
            }
        }
        Lineage { nodes }
    }

    fn find(&self, kind: &str, id: &str) -> Option<Node> {
        self.by_type.get(kind)?.get(id).copied()
    }

    fn endpoint(&self, place: &Place<'_>, port: u16, nodes: &mut Vec<Node>) {
        if let Some(spot) = self.spots.get(&*place.host) {
            nodes.extend(spot.host);
            nodes.extend(spot.endpoints.iter().filter(|(open, _)| *open == port).map(|(_, node)| node));
        }
        match place.address {
            Some(address) => self.ranges(address, nodes),
            None => self.domains(&place.host, nodes),
        }
    }

    /// Every named domain that `name` is or is below: label by label, so that `evilexample.com` is not in
    /// `example.com`.
    fn domains(&self, name: &str, nodes: &mut Vec<Node>) {
        if !self.domains {
            return;
        }
        let mut rest = name;
        loop {
            nodes.extend(self.spots.get(rest).and_then(|spot| spot.domain));
            match rest.split_once('.') {
                Some((_, parent)) => rest = parent,
                None => return,
            }
        }
    }

    fn ranges(&self, address: IpAddr, nodes: &mut Vec<Node>) {
        for std::cmp::Reverse(prefix) in &self.prefixes {
            if let Some(base) = mask(address, *prefix) {
                nodes.extend(self.nets.get(&(base, *prefix)));
            }
        }
    }
}

/// The resource that `ask` is about.
pub(crate) fn resource(model: &Model, ask: &Ask<'_>) -> EntityUid {
    match ask {
        Ask::Http(http) => uid(&model.types.url, &url(http)),
        Ask::Connect { host, address, port } => {
            uid(&model.types.endpoint, &Place::of(*host, *address).endpoint(*port))
        }
        Ask::Dns { name, .. } => uid(&model.types.name, name),
        Ask::Tool(ToolAsk { server, tool, .. }) => uid(&model.types.tool, &tool_id(server, tool)),
        Ask::McpMethod { server, .. } => uid(&model.types.tool, server),
        Ask::ServerTool(ServerToolAsk { provider, name, .. }) => {
            uid(&model.types.server_tool, &tool_id(provider, name))
        }
    }
}

/// Host part of a resource: a name or a literal address.
struct Place<'a> {
    host: Cow<'a, str>,
    address: Option<IpAddr>,
}

impl<'a> Place<'a> {
    fn of(host: Option<&'a str>, address: Option<IpAddr>) -> Self {
        let address = address.map(|address| address.to_canonical());
        let host = match (address, host) {
            (Some(address), _) => Cow::Owned(address.to_string()),
            (None, host) => Cow::Borrowed(host.unwrap_or_default()),
        };
        Self { host, address }
    }

    fn bracketed(&self) -> Cow<'_, str> {
        match self.address {
            Some(IpAddr::V6(_)) => Cow::Owned(format!("[{}]", self.host)),
            _ => Cow::Borrowed(&*self.host),
        }
    }

    fn endpoint(&self, port: u16) -> String {
        format!("{}:{port}", self.bracketed())
    }
}

/// Id of one tool of a server. A server's name has no `/`, so no two tools share an id.
pub(crate) fn tool_id(server: &str, tool: &str) -> String {
    format!("{server}/{tool}")
}

fn url(http: &HttpAsk<'_>) -> String {
    let place = Place::of(Some(http.host), http.address);
    let own_port = matches!((http.scheme, http.port), ("http", 80) | ("https", 443));
    let authority = if own_port { place.bracketed() } else { Cow::Owned(place.endpoint(http.port)) };
    format!("{}://{authority}{}", http.scheme, http.path)
}

/// Host without brackets, and port, of an `Endpoint` id; `None` if no resource is ever spelled like it.
fn parse_endpoint(id: &str) -> Option<(&str, u16)> {
    let (authority, digits) = id.rsplit_once(':')?;
    let port: u16 = digits.parse().ok()?;
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').filter(|inside| inside.parse::<Ipv6Addr>().is_ok())?,
        None if authority.contains(':') => return None,
        None => authority,
    };
    // `+443` and `0443` are numbers too, and no request is spelled so.
    (port.to_string() == digits).then_some((host, port))
}

/// Whether a configured tool can have that name: one to 63 of a-z, 0-9, `-` and `_`, the first a letter or digit.
pub(crate) fn is_tool(name: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (1..=63).contains(&name.len())
        && name.bytes().all(|byte| letter(byte) || b"-_".contains(&byte))
        && name.bytes().next().is_some_and(letter)
}

/// `Endpoint` id of a host and port, as rules write it.
pub(crate) fn endpoint_id(host: Option<&str>, address: Option<IpAddr>, port: u16) -> String {
    Place::of(host, address).endpoint(port)
}

pub(crate) fn uid(kind: &EntityTypeName, id: &str) -> EntityUid {
    EntityUid::from_type_name_and_id(kind.clone(), EntityId::new(id))
}

/// The address with all bits beyond `prefix` cleared; `None` if it has fewer bits than that.
pub(crate) fn mask(address: IpAddr, prefix: u8) -> Option<IpAddr> {
    match address {
        IpAddr::V4(v4) => {
            let shift = 32u32.checked_sub(u32::from(prefix))?;
            let mask = u32::MAX.checked_shl(shift).unwrap_or(0);
            Some(IpAddr::V4((u32::from(v4) & mask).into()))
        }
        IpAddr::V6(v6) => {
            let shift = 128u32.checked_sub(u32::from(prefix))?;
            let mask = u128::MAX.checked_shl(shift).unwrap_or(0);
            Some(IpAddr::V6((u128::from(v6) & mask).into()))
        }
    }
}

/// Reads `address/prefix`; bits beyond the prefix must be zero.
pub(crate) fn parse_net(text: &str) -> Option<(IpAddr, u8)> {
    let (address, prefix) = text.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let prefix: u8 = prefix.parse().ok()?;
    (mask(address, prefix)? == address).then_some((address, prefix))
}
