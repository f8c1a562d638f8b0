//! `next_window`: returns when a window opens next.

use async_trait::async_trait;
use tf_provider::{
    Diagnostics, Function,
    schema::{Description, FunctionSchema, Type},
};

use crate::provider::functions::arguments::{Arguments, parameters, read};

/// The function.
#[derive(Debug)]
pub(in crate::provider) struct NextWindow;

#[async_trait]
impl Function for NextWindow {
    type Input<'a> = Arguments;
    type Output<'a> = String;

    fn schema(&self, _: &mut Diagnostics) -> Option<FunctionSchema> {
        Some(FunctionSchema {
            parameters: parameters("from", "The time to search from (RFC 3339), for example `plantimestamp()`."),
            return_type: Type::String,
            summary: "Returns a window's next start".to_owned(),
            description: Description::markdown(
                "Returns the start (RFC 3339, UTC) of the first opening that ends after `from`: the current opening, or the \
                 next.",
            ),
            ..FunctionSchema::default()
        })
    }

    async fn call<'a>(&self, diags: &mut Diagnostics, arguments: Arguments) -> Option<String> {
        let (window, from) = read(diags, &arguments)?;
        Some(window.next_opening(from)?.start.to_string())
    }
}
