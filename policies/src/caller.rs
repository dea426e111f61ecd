//! Who asks, as Cedar sees it: made once for each run that a thread sees, since making it costs as much as a decision.

use std::{
    cell::{OnceCell, RefCell},
    collections::{HashMap, HashSet},
    rc::Rc,
};

use cedar_policy::{Entities, Entity, EntityUid, RestrictedExpression};
use strait_contract::run::RunInfo;

use crate::{
    model::{Act, Model, PerAction},
    names::uid,
    request::BadQuestion,
};

/// Runs that a thread keeps.
const KEPT: usize = 256;
/// Actions of pinned tools that are kept for each of them.
const PINNED: usize = 512;

/// What was made of a run.
#[derive(Debug)]
pub(crate) struct Caller {
    run: RunInfo,
    /// Of this value, and of no other that this thread ever made.
    pub(crate) serial: u64,
    /// The principal.
    pub(crate) uid: EntityUid,
    entity: Entity,
    bases: PerAction<OnceCell<Rc<Entities>>>,
    /// By action: a pinned tool's is the same in every set.
    pinned: RefCell<HashMap<EntityUid, Rc<Entities>>>,
}

#[derive(Default)]
struct Callers {
    made: u64,
    kept: HashMap<u64, Rc<Caller>>,
}

thread_local! {
    static CALLERS: RefCell<Callers> = RefCell::default();
}

impl Caller {
    /// The kept value if it was made from a run equal to `run`, so that what is kept can't be wrong; else a new one.
    pub(crate) fn of(model: &Model, run: &RunInfo) -> Result<Rc<Self>, BadQuestion> {
        CALLERS.with_borrow_mut(|callers| {
            match callers.kept.get(&run.number) {
                Some(kept) if kept.run == *run => return Ok(Rc::clone(kept)),
                Some(_) => {}
                None if callers.kept.len() >= KEPT => callers.kept.clear(),
                None => {}
            }
            callers.made += 1;
            let entity = entity(model, run)?;
            let caller = Rc::new(Self {
                run: run.clone(),
                serial: callers.made,
                uid: entity.uid(),
                entity,
                bases: PerAction::default(),
                pinned: RefCell::default(),
            });
            callers.kept.insert(run.number, Rc::clone(&caller));
            Ok(caller)
        })
    }

    /// The entities of the run and of the action: those that every request has.
    pub(crate) fn base(&self, model: &Model, act: Act<'_>) -> Result<Rc<Entities>, BadQuestion> {
        let (uid, entity) = act.entity(model).ok_or_else(|| BadQuestion::from("its tool has no action"))?;
        let make = || {
            let both = [self.entity.clone(), entity.clone()];
            Entities::from_entities(both, None).map(Rc::new).map_err(BadQuestion::from)
        };
        match act {
            Act::Shipped(action) => {
                let base = self.bases.get(action);
                if let Some(made) = base.get() {
                    return Ok(Rc::clone(made));
                }
                let made = make()?;
                Ok(Rc::clone(base.get_or_init(|| made)))
            }
            Act::Pinned(_) => {
                let mut kept = self.pinned.borrow_mut();
                if let Some(made) = kept.get(uid) {
                    return Ok(Rc::clone(made));
                }
                let made = make()?;
                if kept.len() >= PINNED {
                    kept.clear();
                }
                kept.insert(uid.clone(), Rc::clone(&made));
                Ok(made)
            }
        }
    }
}

fn entity(model: &Model, run: &RunInfo) -> Result<Entity, BadQuestion> {
    let types = &model.types;
    let text = |text: &str| RestrictedExpression::new_string(text.to_owned());
    let user = RestrictedExpression::new_entity_uid(uid(&types.user, &run.started_by));
    let labels = RestrictedExpression::new_set(run.labels.iter().map(|label| text(label)));
    let attributes = HashMap::from([
        ("startedBy".to_owned(), user),
        ("agent".to_owned(), text(run.agent.as_str())),
        ("version".to_owned(), text(&run.version)),
        ("labels".to_owned(), labels),
    ]);
    let version = format!("{}/{}", run.agent, run.version);
    let parents = HashSet::from([uid(&types.version, &version), uid(&types.agent, run.agent.as_str())]);
    Entity::new(uid(&types.run, run.id.as_str()), attributes, parents).map_err(BadQuestion::from)
}
