//! Which entities the loaded rules name, and which of them a resource belongs to.
//!
//! A resource is given to Cedar with all its named ancestors as direct parents. Ancestors that no rule names are
//! left out: Cedar can't make an entity out of text, so no rule can ask for them.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
};

use cedar_policy::{EntityId, EntityTypeName, EntityUid};

use crate::{
    load::Rule,
    model::Model,
    question::{Ask, HttpAsk},
};

/// A named entity, by number.
pub(crate) type Node = u32;

/// Every entity that the loaded rules name.
#[derive(Debug, Default)]
pub(crate) struct Names {
    uids: Vec<EntityUid>,
    by_uid: HashMap<EntityUid, Node>,
    /// Type, then id: so that a lookup borrows its text.
    by_type: HashMap<String, HashMap<String, Node>>,
    nets: HashMap<(IpAddr, u8), Node>,
    /// Prefix lengths in use, longest first.
    prefixes: BTreeSet<std::cmp::Reverse<u8>>,
}

/// A resource and the named entities it is or belongs to.
#[derive(Debug)]
pub(crate) struct Lineage {
    /// The resource.
    pub(crate) uid: EntityUid,
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
        if kind == "Net"
            && let Some((base, prefix)) = parse_net(id)
        {
            self.nets.insert((base, prefix), node);
            self.prefixes.insert(std::cmp::Reverse(prefix));
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

    /// The resource that `ask` is about. The only place where a resource and its parents are made.
    pub(crate) fn lineage(&self, model: &Model, ask: &Ask<'_>) -> Lineage {
        match ask {
            Ask::Http(http) => {
                let place = Place::of(Some(http.host), http.address);
                let url = url(http, &place);
                let mut nodes = self.endpoint(&place, http.port);
                nodes.extend(self.find("Url", &url));
                Lineage { uid: uid(&model.types.url, &url), nodes }
            }
            Ask::Connect { host, address, port } => {
                let place = Place::of(*host, *address);
                Lineage {
                    uid: uid(&model.types.endpoint, &place.endpoint(*port)),
                    nodes: self.endpoint(&place, *port),
                }
            }
            Ask::Dns { name, .. } => {
                let mut nodes = Vec::new();
                self.domains(name, &mut nodes);
                nodes.extend(self.find("Name", name));
                Lineage { uid: uid(&model.types.name, name), nodes }
            }
        }
    }

    fn find(&self, kind: &str, id: &str) -> Option<Node> {
        self.by_type.get(kind)?.get(id).copied()
    }

    fn endpoint(&self, place: &Place, port: u16) -> Vec<Node> {
        let mut nodes = Vec::with_capacity(4);
        if self.by_type.contains_key("Endpoint") {
            nodes.extend(self.find("Endpoint", &place.endpoint(port)));
        }
        nodes.extend(self.find("Host", &place.host));
        match place.address {
            Some(address) => self.ranges(address, &mut nodes),
            None => self.domains(&place.host, &mut nodes),
        }
        nodes
    }

    /// Every named domain that `name` is or is below: label by label, so that `evilexample.com` is not in
    /// `example.com`.
    fn domains(&self, name: &str, nodes: &mut Vec<Node>) {
        let Some(domains) = self.by_type.get("Domain") else { return };
        let mut rest = name;
        loop {
            nodes.extend(domains.get(rest));
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

/// Host part of a resource: a name or a literal address.
struct Place {
    host: String,
    address: Option<IpAddr>,
}

impl Place {
    fn of(host: Option<&str>, address: Option<IpAddr>) -> Self {
        let address = address.map(|address| address.to_canonical());
        let host = match (address, host) {
            (Some(address), _) => address.to_string(),
            (None, host) => host.unwrap_or_default().to_owned(),
        };
        Self { host, address }
    }

    fn bracketed(&self) -> String {
        match self.address {
            Some(IpAddr::V6(_)) => format!("[{}]", self.host),
            _ => self.host.clone(),
        }
    }

    fn endpoint(&self, port: u16) -> String {
        format!("{}:{port}", self.bracketed())
    }
}

fn url(http: &HttpAsk<'_>, place: &Place) -> String {
    let own_port = matches!((http.scheme, http.port), ("http", 80) | ("https", 443));
    let authority = if own_port { place.bracketed() } else { place.endpoint(http.port) };
    format!("{}://{authority}{}", http.scheme, http.path)
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
