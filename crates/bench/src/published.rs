//! Published figures of others, shown beside ours. The hardware differs, so only ratios and shapes compare.

use serde::{Deserialize, Serialize};

/// A published series that belongs to one of our figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Published {
    pub(crate) figure: String,
    pub(crate) series: String,
    /// Whether the points are ratios to the figure's baseline instead of rates in its unit.
    pub(crate) relative: bool,
    pub(crate) points: Vec<Point>,
    /// Source.
    pub(crate) source: String,
}

/// A published value, or a published range.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) x_label: String,
    pub(crate) low: f64,
    pub(crate) high: f64,
}
