//! What the rounds of a row say together: median and quartiles.

use serde_json::{Value, json};

/// Lower quartile, median, upper quartile.
#[derive(Clone, Copy, Debug)]
pub struct Quartiles([f64; 3]);

impl Quartiles {
    pub fn of(mut values: Vec<f64>) -> Quartiles {
        values.sort_by(f64::total_cmp);
        let at = |fraction: f64| {
            let place = fraction * (values.len() - 1) as f64;
            let (low, high) = (values[place.floor() as usize], values[place.ceil() as usize]);
            low + (high - low) * place.fract()
        };
        Quartiles([at(0.25), at(0.5), at(0.75)])
    }

    pub fn times(self, factor: f64) -> Quartiles {
        Quartiles(self.0.map(|value| value * factor))
    }

    pub fn median(self) -> f64 {
        self.0[1]
    }

    /// The median with so many decimals, and both quartiles with as many.
    pub fn shown(self, decimals: [usize; 2]) -> String {
        let ([low, median, high], [of_median, of_others]) = (self.0, decimals);
        format!("{median:.of_median$} [{low:.of_others$} {high:.of_others$}]")
    }

    pub fn json(self) -> Value {
        json!({ "median": self.0[1], "quartiles": [self.0[0], self.0[2]] })
    }
}
