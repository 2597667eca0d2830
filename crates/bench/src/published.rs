//! Figures that others published, to be shown beside ours: other hardware, so ratios and shapes are what compares.

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
    /// Where it is from.
    pub(crate) source: String,
}

/// A published value, or the ends of a published range.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) x_label: String,
    pub(crate) low: f64,
    pub(crate) high: f64,
}
