//! What is asked of the engine from outside the load: by scenarios.

use super::Simulation;
use crate::stamp::Stamps;
use tidegate_engine::block::Span;
use tidegate_engine::request::{Command, RequestId};
use tidegate_engine::{Control, Event};

impl Simulation {
    /// A request from outside the load. Its reply comes to `scene.answers`.
    pub fn ask(&mut self, span: Span, command: Command<Stamps>) -> RequestId {
        self.ask_at_once([(span, command)])[0]
    }

    /// The same of several, which come in one turn.
    pub fn ask_at_once(&mut self, asked: impl IntoIterator<Item = (Span, Command<Stamps>)>) -> Vec<RequestId> {
        let mut ids = Vec::new();
        for (span, command) in asked {
            let request = self.scene.load.ask(span, command);
            ids.push(request.id);
            self.scene.arrive(request, &mut self.events);
        }
        self.take_turn();
        ids
    }

    /// The same, behind what devices have to tell at this moment.
    pub fn ask_behind_what_ends(&mut self, asked: impl IntoIterator<Item = (Span, Command<Stamps>)>) -> Vec<RequestId> {
        self.advance(self.now());
        self.ask_at_once(asked)
    }

    /// A front's client asks; the engine hears nothing of it in this moment. False: it is not for the front to answer, and nobody does.
    pub fn ask_front(&mut self, span: Span, command: Command<Stamps>) -> bool {
        let request = self.scene.load.ask(span, command);
        let Some(outcome) = self.scene.fronts.answer(&request) else { return false };
        self.scene.answer_at_front(&request, outcome);
        true
    }

    pub fn control(&mut self, control: Control) {
        self.events.push(Event::Control(control));
        self.take_turn();
    }
}
