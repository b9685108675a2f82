//! W3C trace context, carried from incoming headers through the handler to outgoing messages.

use std::future::Future;
use std::sync::Arc;

use crate::clock::Seed;
use crate::headers::Headers;

tokio::task_local! {
    static CURRENT: Arc<TraceContext>;
}

/// A `traceparent` (and `tracestate`) as it stood in a message's headers.
///
/// ```
/// use oncebox_core::{Headers, TraceContext};
///
/// let mut headers = Headers::new();
/// headers.push("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
/// let trace = TraceContext::extract(&headers).unwrap();
/// assert_eq!(trace.trace_id(), "0af7651916cd43dd8448eb211c80319c");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    trace_id: String,
    span_id: String,
    flags: String,
    state: Option<String>,
    parent_id: Option<String>,
}

impl TraceContext {
    /// The step that runs here: inside a handler the call of this handler, when its message carries a trace.
    ///
    /// Hand [`TraceContext::traceparent`] to whatever you call, and it appears below this handler in the trace.
    pub fn current() -> Option<Self> {
        CURRENT.try_with(|current| (**current).clone()).ok()
    }

    /// Runs a future as this step.
    pub(crate) async fn scope<F: Future>(context: Option<Arc<Self>>, future: F) -> F::Output {
        match context {
            Some(context) => CURRENT.scope(context, future).await,
            None => future.await,
        }
    }

    /// A trace that begins here, written down (sampled) by as many of a million as `sampled` says.
    pub(crate) fn begin(seed: &Seed, sampled: u32) -> Self {
        let trace_id = format!("{:016x}{:016x}", seed.next(), seed.next().max(1));
        let flags = if seed.next() % 1_000_000 < u64::from(sampled) { "01" } else { "00" };
        Self {
            trace_id,
            span_id: format!("{:016x}", seed.next().max(1)),
            flags: flags.to_owned(),
            state: None,
            parent_id: None,
        }
    }

    /// Reads it from headers; `None` when there is none or it is malformed (the standard says: ignore it).
    pub fn extract(headers: &Headers) -> Option<Self> {
        let mut parts = headers.text("traceparent")?.trim().split('-');
        let (version, trace_id, span_id, flags) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let lower_hex = |text: &str, length: usize| {
            text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        let nonzero = |text: &str| text.bytes().any(|byte| byte != b'0');
        // Version ff is forbidden; version 00 has exactly four parts, later ones may add some.
        let version_ok =
            lower_hex(version, 2) && version != "ff" && (version != "00" || parts.next().is_none());
        let ids_ok =
            lower_hex(trace_id, 32) && nonzero(trace_id) && lower_hex(span_id, 16) && nonzero(span_id);
        (version_ok && ids_ok && lower_hex(flags, 2)).then(|| Self {
            trace_id: trace_id.to_owned(),
            span_id: span_id.to_owned(),
            flags: flags.to_owned(),
            state: headers.text("tracestate").map(str::to_owned),
            parent_id: None,
        })
    }

    /// The same trace with a new span, whose parent is the old one.
    pub fn child(&self, random: u64) -> Self {
        Self {
            span_id: format!("{:016x}", random.max(1)),
            parent_id: Some(self.span_id.clone()),
            ..self.clone()
        }
    }

    /// Writes it to headers that have none of their own.
    pub fn inject(&self, headers: &mut Headers) {
        if headers.get("traceparent").is_some() {
            return;
        }
        headers.push("traceparent", self.traceparent());
        if let Some(state) = &self.state {
            headers.push("tracestate", state.clone());
        }
    }

    /// Writes it to headers, instead of what they had.
    pub(crate) fn replace(&self, headers: &mut Headers) {
        headers.retain(|name, _| {
            !name.eq_ignore_ascii_case("traceparent") && !name.eq_ignore_ascii_case("tracestate")
        });
        self.inject(headers);
    }

    /// The value of the `traceparent` header.
    pub fn traceparent(&self) -> String {
        format!("00-{}-{}-{}", self.trace_id, self.span_id, self.flags)
    }

    /// The id of the whole trace.
    pub fn trace_id(&self) -> &str {
        &self.trace_id
    }

    /// The id of this step.
    pub fn span_id(&self) -> &str {
        &self.span_id
    }

    /// The id of the step before, when it is known.
    pub fn parent_id(&self) -> Option<&str> {
        self.parent_id.as_deref()
    }

    /// Whether the trace is to be written down.
    pub fn is_sampled(&self) -> bool {
        u8::from_str_radix(&self.flags, 16).is_ok_and(|flags| flags & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extract(value: &str) -> Option<TraceContext> {
        let mut headers = Headers::new();
        headers.push("Traceparent", value.to_owned());
        TraceContext::extract(&headers)
    }

    #[test]
    fn malformed_trace_contexts_are_ignored() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert_eq!(extract(good).unwrap().traceparent(), good);
        for wrong in [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-extra",
        ] {
            assert_eq!(extract(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_child_keeps_the_trace_and_the_state() {
        let mut headers = Headers::new();
        headers.push("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
        headers.push("tracestate", "vendor=1");
        let child = TraceContext::extract(&headers).unwrap().child(5);
        let mut outgoing = Headers::new();
        child.inject(&mut outgoing);
        assert_eq!(
            outgoing.text("traceparent"),
            Some("00-0af7651916cd43dd8448eb211c80319c-0000000000000005-01")
        );
        assert_eq!(outgoing.text("tracestate"), Some("vendor=1"));
        child.child(9).inject(&mut outgoing);
        assert_eq!(outgoing.len(), 2, "headers with a context of their own are left alone");
        assert_eq!((child.parent_id(), child.is_sampled()), (Some("b7ad6b7169203331"), true));
        child.child(9).replace(&mut outgoing);
        assert_eq!(
            (outgoing.len(), TraceContext::extract(&outgoing).unwrap().span_id()),
            (2, "0000000000000009")
        );
    }

    #[test]
    fn a_trace_that_begins_here_is_well_formed_and_sampled_as_told() {
        let seed = Seed::fixed(7);
        for sampled in [0, 1_000_000] {
            let begun = TraceContext::begin(&seed, sampled);
            assert_eq!(
                extract(&begun.traceparent()).map(|trace| trace.traceparent()),
                Some(begun.traceparent())
            );
            assert_eq!((begun.is_sampled(), begun.parent_id()), (sampled > 0, None));
        }
        let half = (0..1000).filter(|_| TraceContext::begin(&seed, 500_000).is_sampled()).count();
        assert!((400..600).contains(&half), "{half}");
    }
}
