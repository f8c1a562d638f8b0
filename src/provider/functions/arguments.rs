//! Arguments shared by both window functions.

use std::time::Duration;

use jiff::Timestamp;
use tf_provider::{
    AttributePath, Diagnostics,
    schema::{Description, Parameter, Type},
};

use crate::maintenance::window::{OnClose, Window, WindowSpec};
use crate::provider::shared::values::{bad, parse_duration};

/// Schedule, duration, time zone, and time.
pub(in crate::provider) type Arguments = (String, String, String, String);

/// Builds the parameters; the last parameter is named `moment`.
pub(in crate::provider) fn parameters(moment: &str, about: &str) -> Vec<Parameter> {
    let text = |name: &str, about: &str| Parameter {
        name: name.to_owned(),
        param_type: Type::String,
        description: Description::markdown(about),
        ..Parameter::default()
    };
    vec![
        text("schedule", "When the window opens: five cron fields, for example `0 22 * * SAT`."),
        text("duration", "How long the window stays open, for example `4h`."),
        text("time_zone", "The schedule's IANA time zone."),
        text(moment, about),
    ]
}

/// Parses the arguments. Every diagnostic names its argument.
pub(in crate::provider) fn read(
    diags: &mut Diagnostics,
    (schedule, duration, zone, moment): &Arguments,
) -> Option<(Window, Timestamp)> {
    let argument = AttributePath::function_argument;
    let Ok(at) = moment.parse::<Timestamp>() else {
        let detail = format!("{moment:?} is not a valid RFC 3339 timestamp. Write it as one, or pass plantimestamp().");
        bad(diags, argument(3), "Invalid RFC 3339 timestamp", detail);
        return None;
    };
    let duration = match parse_duration(duration) {
        Ok(duration) => duration,
        Err(problem) => {
            bad(diags, argument(1), "Invalid duration", problem);
            return None;
        }
    };
    let spec = WindowSpec {
        schedule: schedule.clone().into(),
        duration,
        time_zone: zone.clone().into(),
        exclude: Vec::new(),
        exclude_periods: Vec::new(),
        min_remaining: Duration::ZERO,
        on_close: OnClose::Finish,
    };
    match spec.check(at) {
        Ok(window) => Some((window, at)),
        Err(problem) => {
            let index = match problem.field() {
                "schedule" => 0,
                "duration" => 1,
                _ => 2,
            };
            bad(diags, argument(index), "Invalid window", format!("{problem}."));
            None
        }
    }
}
