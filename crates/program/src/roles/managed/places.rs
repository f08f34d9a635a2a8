//! What the slots of a node shall hold, and where the lenders of that are.

use std::collections::BTreeMap;

use base::ids::{DomainId, NodeId};
use io::address::Addresses;
use io::event::Event;
use management::wire::Placed;
use manager::model::Place;
use manager::report::Preset;
use node::{Address, FunctionId, Lender, MAX_RAILS, PublicKey};

use crate::assigned::Assigned;

/// What slots shall hold.
#[derive(Default)]
pub(super) struct Places {
    /// What was told of each place last; what of it holds, only the list of presets says.
    told: BTreeMap<Place, (Preset, Assigned)>,
    wanted: BTreeMap<Place, Assigned>,
}

impl Places {
    /// As was kept.
    pub(super) fn new(presets: &[Preset], placed: &[Placed]) -> Self {
        let mut places = Self::default();
        places.learn(placed);
        places.set(presets);
        places
    }

    /// The manager says this.
    pub(super) fn learn(&mut self, placed: &[Placed]) {
        self.told =
            placed.iter().filter_map(|it| Some((it.preset.place, (it.preset, assigned(it)?)))).collect();
        // Where a lender is may be news of what holds already.
        for (place, wanted) in &mut self.wanted {
            let news = self.told.get(place).map(|(_, news)| news).filter(|news| news.is_same(wanted));
            if let Some(news) = news.filter(|news| !news.addresses.is_empty()) {
                wanted.addresses = news.addresses;
            }
        }
    }

    /// This list holds from now on.
    pub(super) fn set(&mut self, presets: &[Preset]) {
        let known = |preset: &Preset| {
            let (told, assigned) = self.told.get(&preset.place)?;
            (told == preset).then(|| (preset.place, assigned.clone()))
        };
        self.wanted = presets.iter().filter_map(known).collect();
    }

    /// What a slot shall hold.
    pub(super) fn wanted(&self, domain: DomainId, slot: u16) -> Option<&Assigned> {
        self.wanted.get(&Place { domain, slot })
    }

    /// Where a lender is.
    pub(super) fn place_of(&self, node: NodeId) -> Option<[Option<Address>; MAX_RAILS]> {
        let mut lenders = self.wanted.values().filter(|it| it.lender.key.id() == node);
        let addresses = lenders.find(|it| !it.addresses.is_empty())?.addresses;
        let mut place = [None; MAX_RAILS];
        addresses.iter().for_each(|(rail, address)| place[rail.index()] = Some(Address::from(address)));
        Some(place)
    }
}

/// What a manager says, as a slot has it. Something that this version cannot have is said, and left out.
fn assigned(placed: &Placed) -> Option<Assigned> {
    let Placed { preset, function, domain, addresses, .. } = placed;
    let unfit = |why: String| {
        Event::DecisionUnfit { function: function.to_string(), why }.say();
        None
    };
    let Ok(name) = function.as_str().parse() else {
        return unfit("a function of this name cannot be borrowed by this version".to_owned());
    };
    let addresses = match addresses.as_str() {
        "" => Addresses::NONE,
        // Where a lender is may be said in a way that only a newer version knows. It may be found without it.
        text => text.parse().unwrap_or(Addresses::NONE),
    };
    let key = PublicKey(preset.lender.0);
    if !key.is_usable() {
        return unfit("its lender is said to have a key that is nobody's".to_owned());
    }
    Some(Assigned {
        generation: preset.generation,
        number: FunctionId(preset.function.number),
        slot: preset.place.slot,
        group: preset.group,
        lender: Lender { key, domain: *domain },
        function: name,
        on_silence: preset.on_silence,
        addresses,
    })
}
