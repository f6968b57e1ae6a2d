//! Spans, sources, diagnostics and did-you-mean.
