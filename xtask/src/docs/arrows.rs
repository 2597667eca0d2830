//! Picture of the crates and their dependencies, drawn from the manifests so that it is always current.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result};
use toml::{Table, Value};

use crate::exec;

/// Path of the picture.
pub(super) const FILE: &str = "docs/pictures/crates.svg";

/// Sizes in pixels: of a box, of the space between rows, of the picture.
const BOX_WIDTH: usize = 132;
const BOX_HEIGHT: usize = 40;
const GAP: usize = 56;
const WIDTH: usize = 760;

/// Dependencies of each folder that is a crate, by the folders' names.
type CrateUses = BTreeMap<String, BTreeSet<String>>;

/// Draws the picture from the present manifests.
pub(super) fn picture() -> Result<String> {
    Ok(draw(&reduced(&manifests()?)))
}

fn manifests() -> Result<CrateUses> {
    let mut folders = Vec::new();
    for entry in fs::read_dir(exec::root().join("crates"))? {
        folders.push(entry?.path());
    }
    let mut packages = BTreeMap::new();
    for folder in folders {
        let path = folder.join("Cargo.toml");
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let manifest: Table = text.parse().with_context(|| path.display().to_string())?;
        let name = manifest.get("package").and_then(|package| package.get("name")).and_then(Value::as_str);
        let name = name.with_context(|| format!("{} has no name", path.display()))?.to_owned();
        let folder = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        packages.insert(name, (folder, manifest));
    }
    let uses = packages.values().map(|(folder, manifest)| {
        let named = manifest.get("dependencies").and_then(Value::as_table).into_iter().flat_map(Table::keys);
        let ours = named.filter_map(|name| packages.get(name));
        (folder.clone(), ours.map(|(folder, _)| folder.clone()).collect())
    });
    Ok(uses.collect())
}

/// Removes arrows that follow from others.
fn reduced(uses: &CrateUses) -> CrateUses {
    let through_others = |of: &str, to: &str| {
        uses.get(of).into_iter().flatten().any(|other| other != to && reaches(uses, other, to))
    };
    let kept = |(of, to): (&String, &BTreeSet<String>)| {
        (of.clone(), to.iter().filter(|to| !through_others(of, to)).cloned().collect())
    };
    uses.iter().map(kept).collect()
}

fn reaches(uses: &CrateUses, from: &str, to: &str) -> bool {
    uses.get(from).into_iter().flatten().any(|next| next == to || reaches(uses, next, to))
}

/// Number of levels of crates below this one.
fn level(uses: &CrateUses, of: &str) -> usize {
    uses.get(of).into_iter().flatten().map(|below| 1 + level(uses, below)).max().unwrap_or(0)
}

fn draw(uses: &CrateUses) -> String {
    let top = uses.keys().map(|name| level(uses, name)).max().unwrap_or(0);
    let mut places: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for row in 0..=top {
        let mut names: Vec<&str> =
            uses.keys().map(String::as_str).filter(|name| level(uses, name) == top - row).collect();
        // Each is placed below those that use it.
        let mean = |name: &str| {
            let users =
                uses.iter().filter(|(_, to)| to.contains(name)).filter_map(|(of, _)| places.get(of.as_str()));
            let (sum, count) = users.fold((0, 0), |(sum, count), (x, _)| (sum + x, count + 1));
            usize::checked_div(sum, count).unwrap_or(WIDTH)
        };
        // Among those below the same crate, arrows from further up go to the right, not behind a box.
        let highest =
            |name: &str| uses.iter().filter(|(_, to)| to.contains(name)).map(|(of, _)| level(uses, of)).max();
        names.sort_by_key(|name| (mean(name), highest(name), *name));
        let step = WIDTH / names.len().max(1);
        for (at, name) in names.into_iter().enumerate() {
            places.insert(name, (step * at + step / 2, row * (BOX_HEIGHT + GAP) + 4));
        }
    }
    let height = top * (BOX_HEIGHT + GAP) + BOX_HEIGHT + 8;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"15\">\n\
         <!-- Drawn by `cargo xtask docs` from the manifests; do not edit. -->\n\
         <title>The crates and their dependencies</title>\n<style>\n\
         text {{ fill: #1f2328; text-anchor: middle }} rect {{ fill: #eef4fb; stroke: #4a78a8 }}\n\
         line {{ stroke: #57606a; stroke-width: 1.5 }} path {{ fill: #57606a }}\n\
         @media (prefers-color-scheme: dark) {{ text {{ fill: #e6edf3 }} rect {{ fill: #16273a; stroke: #6ea0d6 }}\n\
         line {{ stroke: #9aa4af }} path {{ fill: #9aa4af }} }}\n</style>\n\
         <defs><marker id=\"to\" markerWidth=\"9\" markerHeight=\"9\" refX=\"8\" refY=\"4\" orient=\"auto\"><path d=\"M0 0L8 4L0 8z\"/></marker></defs>\n"
    );
    for (of, to) in uses {
        for to in to {
            let (Some((x, y)), Some((to_x, to_y))) = (places.get(of.as_str()), places.get(to.as_str()))
            else {
                continue;
            };
            // An arrow past a row leaves and ends at corners, so that it crosses no box.
            let past_a_row = BOX_HEIGHT + 2 * GAP < to_y - y;
            let (x, to_x) = match to_x.cmp(x) {
                Ordering::Greater if past_a_row => (x + BOX_WIDTH / 2 - 6, to_x - BOX_WIDTH / 3),
                Ordering::Less if past_a_row => (x + 6 - BOX_WIDTH / 2, to_x + BOX_WIDTH / 3),
                _ => (*x, *to_x),
            };
            // Writing to a String cannot fail.
            let _ = writeln!(
                svg,
                "<line x1=\"{x}\" y1=\"{}\" x2=\"{to_x}\" y2=\"{to_y}\" marker-end=\"url(#to)\"/>",
                y + BOX_HEIGHT
            );
        }
    }
    for (name, (x, y)) in places {
        let _ = writeln!(
            svg,
            "<rect x=\"{}\" y=\"{y}\" width=\"{BOX_WIDTH}\" height=\"{BOX_HEIGHT}\" rx=\"6\"/><text x=\"{x}\" y=\"{}\">{name}</text>",
            x.saturating_sub(BOX_WIDTH / 2),
            y + BOX_HEIGHT / 2 + 5
        );
    }
    svg + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrows_that_follow_from_others_are_left_out() {
        let uses = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<BTreeSet<_>>();
        let all = CrateUses::from([
            ("top".into(), uses(&["mid", "low"])),
            ("mid".into(), uses(&["low"])),
            ("low".into(), uses(&[])),
        ]);
        let kept = reduced(&all);
        assert_eq!(kept["top"], uses(&["mid"]));
        let svg = draw(&kept);
        assert_eq!((svg.matches("<line").count(), svg.matches("<rect x").count()), (2, 3), "{svg}");
    }

    #[test]
    fn the_manifests_are_read() {
        let uses = manifests().unwrap();
        assert!(uses["fuse"].contains("engine") && uses["engine"].contains("sys"), "{uses:?}");
    }
}
