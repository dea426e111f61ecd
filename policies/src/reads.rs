//! What of a call a rule can read, so that only that is built and compared: attributes of `context`, and whether it
//! looks at the resource. The principal isn't here: it counts as read by every rule.
//!
//! INVARIANT: anything that isn't understood exactly counts as reading everything.

mod paths;

use cedar_policy::pst::{Clause, Expr, ResourceConstraint, Template, Var};

pub(crate) use self::paths::{Fields, Path, argument_paths, touches};

/// A set of attributes of `context`, and the resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reads(u32);

macro_rules! attributes {
    ($($bit:literal $name:ident = $text:literal,)*) => {
        impl Reads {
            $(pub(crate) const $name: Self = Self(1 << $bit);)*
            /// Everything there is.
            pub(crate) const ALL: Self = Self($(Self::$name.0)|*);
            fn attribute(name: &str) -> Self {
                match name { $($text => Self::$name,)* _ => Self::ALL }
            }
        }
    };
}

attributes! {
    0 TIME = "time",
    1 METHOD = "method",
    2 SCHEME = "scheme",
    3 HOST = "host",
    4 PORT = "port",
    5 PATH = "path",
    6 QUERY = "query",
    7 QUERY_BYTES = "queryBytes",
    8 BODY_BYTES = "bodyBytes",
    9 CONTENT_TYPE = "contentType",
    10 VIA = "via",
    11 ADDRESS = "address",
    12 RECORD_TYPE = "recordType",
    13 PROCESS = "process",
    // Not attributes of `context` but of `context.process`.
    14 PROCESS_EXE = "process.exe",
    15 PROCESS_DIGEST = "process.digest",
    // The resource and what it is in, where the index doesn't answer that already.
    16 RESOURCE = "(resource)",
    17 FLAT = "flat",
    18 ARGUMENTS = "arguments",
    19 MODEL = "model",
    20 KIND = "kind",
}

impl Reads {
    /// As a number, for keys.
    pub(crate) fn bits(self) -> u32 {
        self.0
    }

    #[cfg(test)]
    pub(crate) fn bit(bit: u32) -> Self {
        Self(1 << bit)
    }

    pub(crate) fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    #[must_use]
    pub(crate) fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether nothing but the resource (and who asks) is read.
    pub(crate) fn is_only_resource(self) -> bool {
        Self::RESOURCE.contains(self)
    }

    /// What `condition` can read.
    pub(crate) fn of_condition(condition: &Expr) -> Self {
        condition.reduce(&|part| Self::part(part), &Self::with, Self::default())
    }

    /// What `rule` can read.
    pub(crate) fn of(rule: &Template) -> Self {
        let scope = match rule.resource {
            // Its type is known without it.
            ResourceConstraint::Any | ResourceConstraint::Is(_) => Self::default(),
            _ => Self::RESOURCE,
        };
        rule.clauses().iter().fold(scope, |reads, clause| match clause {
            Clause::When(condition) | Clause::Unless(condition) => reads.with(Self::of_condition(condition)),
        })
    }

    /// What `part` reads, if that can be told without looking into it.
    fn part(part: &Expr) -> Option<Self> {
        match part {
            Expr::GetAttr { expr, attr } => match &**expr {
                Expr::Var(Var::Context) => Some(whole(attr)),
                inner if is_process(inner) => Some(process(attr)),
                _ => None,
            },
            Expr::HasAttr { expr, attrs } => match &**expr {
                Expr::Var(Var::Context) if attrs.head == "process" => {
                    let field = attrs.tail.first();
                    Some(field.map_or(Self::PROCESS, |field| process(field)))
                }
                Expr::Var(Var::Context) => Some(whole(&attrs.head)),
                inner if is_process(inner) => Some(process(&attrs.head)),
                _ => None,
            },
            Expr::Var(Var::Context) => Some(Self::ALL),
            Expr::Var(Var::Resource) => Some(Self::RESOURCE),
            _ => None,
        }
    }
}

/// `context.NAME` used as a whole.
fn whole(name: &str) -> Reads {
    let reads = Reads::attribute(name);
    if reads == Reads::PROCESS { reads.with(Reads::PROCESS_EXE).with(Reads::PROCESS_DIGEST) } else { reads }
}

/// `context.process.FIELD`.
fn process(field: &str) -> Reads {
    match field {
        "exe" => Reads::PROCESS.with(Reads::PROCESS_EXE),
        "digest" => Reads::PROCESS.with(Reads::PROCESS_DIGEST),
        "comm" | "uid" => Reads::PROCESS,
        _ => Reads::ALL,
    }
}

fn is_process(expr: &Expr) -> bool {
    matches!(expr, Expr::GetAttr { expr, attr } if attr == "process" && matches!(**expr, Expr::Var(Var::Context)))
}
