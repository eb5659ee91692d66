//! Commands of the control socket that volumes are still to answer. One that names a volume, or has only one to go to, is answered as that
//! volume answers; one that goes to several is answered when all of them have: `{"volumes": [{"name": …, …}, …]}`, in their order.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::advice::volumes_there_are;
use crate::control::{Asker, INQUIRIES_MAX};

pub struct Inquiries {
    /// Of all volumes.
    names: Vec<String>,
    next: u64,
    open: BTreeMap<u64, Inquiry>,
    answered: Vec<(Asker, Value)>,
}

struct Inquiry {
    asker: Asker,
    is_plural: bool,
    /// Of each volume asked.
    answers: BTreeMap<usize, Option<Value>>,
}

impl Inquiries {
    pub fn new(names: Vec<String>) -> Inquiries {
        Inquiries { names, next: 0, open: BTreeMap::new(), answered: Vec::new() }
    }

    /// The number of a new inquiry, and the places of the volumes to be asked: a single one, if it `is_of_one`.
    ///
    /// # Errors
    /// The answer: there is no such volume, or it is not said which; or too many wait for it already (of clients that have gone, while it does not
    /// answer).
    pub fn begin(&mut self, asker: Asker, volume: Option<&str>, is_of_one: bool) -> Result<(u64, Vec<usize>), Value> {
        let places: Vec<usize> = match volume {
            None if is_of_one && self.names.len() > 1 => {
                return Err(json!({ "error": format!("this is asked of one volume, and {}; say which", self.there_are()) }));
            }
            None => (0..self.names.len()).collect(),
            Some(wanted) => match self.names.iter().position(|name| name == wanted) {
                Some(place) => vec![place],
                None => return Err(json!({ "error": self.unknown(wanted) })),
            },
        };
        if let Some(place) = places.iter().find(|place| self.waiting_for(**place).len() >= INQUIRIES_MAX) {
            let name = &self.names[*place];
            return Err(json!({ "error": format!("{INQUIRIES_MAX} commands wait for an answer of volume {name:?} already") }));
        }
        let number = self.next;
        self.next += 1;
        let answers = places.iter().map(|place| (*place, None)).collect();
        self.open.insert(number, Inquiry { asker, is_plural: places.len() > 1, answers });
        Ok((number, places))
    }

    fn unknown(&self, wanted: &str) -> String {
        let wanted: String = wanted.chars().take(40).collect();
        format!("no volume {wanted:?} is served here; {}", self.there_are())
    }

    fn there_are(&self) -> String {
        volumes_there_are(self.names.iter().map(String::as_str))
    }

    /// What a volume answers.
    pub fn answer(&mut self, number: u64, place: usize, mut answer: Value) {
        let Some(inquiry) = self.open.get_mut(&number) else { return };
        answer["name"] = json!(self.names[place]);
        inquiry.answers.insert(place, Some(answer));
        if inquiry.answers.values().all(Option::is_some) {
            let Inquiry { asker, is_plural, answers } = self.open.remove(&number).expect("looked at above");
            let mut answers = answers.into_values().flatten();
            let answer = if is_plural { json!({ "volumes": answers.collect::<Vec<_>>() }) } else { answers.next().unwrap_or_default() };
            self.answered.push((asker, answer));
        }
    }

    /// Inquiries that this volume has not answered.
    pub fn waiting_for(&self, place: usize) -> Vec<u64> {
        let waits = |inquiry: &Inquiry| inquiry.answers.get(&place).is_some_and(Option::is_none);
        self.open.iter().filter(|(_, inquiry)| waits(inquiry)).map(|(number, _)| *number).collect()
    }

    /// Those that are answered now, once each.
    pub fn answered(&mut self) -> Vec<(Asker, Value)> {
        std::mem::take(&mut self.answered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(names: &[&str]) -> Inquiries {
        Inquiries::new(names.iter().map(|name| (*name).to_owned()).collect())
    }

    /// Who asked, and the answer as it is sent.
    fn answered(inquiries: &mut Inquiries) -> Vec<(Asker, String)> {
        inquiries.answered().into_iter().map(|(asker, answer)| (asker, answer.to_string())).collect()
    }

    #[test]
    fn one_volume_answers_for_itself_and_several_together_in_their_order() {
        let mut inquiries = of(&["home", "media"]);
        let (all, one) = (Asker::test(1), Asker::test(2));
        assert_eq!(inquiries.begin(all, None, false), Ok((0, vec![0, 1])));
        assert_eq!(inquiries.begin(one, Some("media"), true), Ok((1, vec![1])));
        assert_eq!((inquiries.waiting_for(0), inquiries.waiting_for(1)), (vec![0], vec![0, 1]));
        inquiries.answer(0, 1, json!({ "phase": "serving" }));
        assert_eq!(answered(&mut inquiries), []);
        inquiries.answer(1, 1, json!({ "phase": "serving" }));
        assert_eq!(answered(&mut inquiries), [(one, r#"{"name":"media","phase":"serving"}"#.to_owned())]);
        inquiries.answer(0, 0, json!({ "phase": "stopped" }));
        let both = r#"{"volumes":[{"name":"home","phase":"stopped"},{"name":"media","phase":"serving"}]}"#;
        assert_eq!(answered(&mut inquiries), [(all, both.to_owned())]);
        assert!(inquiries.open.is_empty() && answered(&mut inquiries).is_empty());
    }

    #[test]
    fn what_is_asked_of_one_volume_goes_to_none_of_several() {
        let mut inquiries = of(&["home", "media"]);
        let error = inquiries.begin(Asker::test(7), None, true).unwrap_err().to_string();
        assert!(error.contains(r#"of one volume, and there are \"home\", \"media\"; say which"#), "{error}");
        assert!(inquiries.waiting_for(0).is_empty() && inquiries.waiting_for(1).is_empty());
    }

    #[test]
    fn a_volume_that_answers_nothing_is_asked_so_often_and_the_others_go_on() {
        let mut inquiries = of(&["home", "media"]);
        let asker = Asker::test(7);
        for _ in 0..INQUIRIES_MAX {
            inquiries.begin(asker, Some("home"), false).unwrap();
        }
        for volume in [Some("home"), None] {
            let error = inquiries.begin(asker, volume, false).unwrap_err().to_string();
            assert!(error.contains(r#"256 commands wait for an answer of volume \"home\""#), "{error}");
        }
        let (number, places) = inquiries.begin(asker, Some("media"), false).unwrap();
        assert_eq!(places, [1]);
        inquiries.answer(number, 1, json!({}));
        assert_eq!(answered(&mut inquiries), [(asker, r#"{"name":"media"}"#.to_owned())]);
        inquiries.answer(0, 0, json!({}));
        assert!(inquiries.begin(asker, None, false).is_ok(), "one fewer waits");
    }

    #[test]
    fn the_only_volume_answers_with_or_without_its_name_and_no_other_name_is_known() {
        let mut inquiries = of(&["home"]);
        for volume in [None, Some("home")] {
            let (number, places) = inquiries.begin(Asker::test(7), volume, true).unwrap();
            assert_eq!(places, [0]);
            inquiries.answer(number, 0, json!({}));
            assert_eq!(answered(&mut inquiries), [(Asker::test(7), r#"{"name":"home"}"#.to_owned())]);
        }
        for wrong in ["Home", "", &"x".repeat(5000)] {
            let error = inquiries.begin(Asker::test(7), Some(wrong), false).unwrap_err().to_string();
            assert!(error.contains(r#"is served here; there are \"home\""#) && error.len() < 200, "{error}");
        }
    }
}
