//! `lab status`: a table, or JSON.

use std::collections::BTreeMap;

use anyhow::Result;
use fsstack_lab::disks::Disks;
use fsstack_lab::gluster::{Gluster, Status};

/// Prints what of the lab is up.
pub(super) fn status(lab: &Gluster, disks: &[Disks], json: bool) -> Result<()> {
    let status = lab.status()?;
    let mut grounds = BTreeMap::new();
    for disks in disks {
        grounds.insert(disks.stack().to_string(), disks.mounted()?);
    }
    if json {
        let mut value = serde_json::to_value(&status)?;
        if let Some(object) = value.as_object_mut() {
            object.insert("grounds".into(), serde_json::to_value(&grounds)?);
        }
        println!("{value:#}");
        return Ok(());
    }
    print(&status);
    for (name, mounted) in grounds {
        let paths: Vec<String> = mounted.iter().map(|path| path.display().to_string()).collect();
        println!("{name:<16} {}", if paths.is_empty() { "down".into() } else { paths.join(" ") });
    }
    Ok(())
}

fn print(status: &Status) {
    println!("lab      {}", status.home.display());
    match (&status.engine, status.server) {
        (Some(engine), Some(pid)) => println!("server   runs by {engine}, process {pid}"),
        _ => println!("server   down"),
    }
    let flags = [(status.frozen, "frozen"), (status.cut, "link cut"), (status.wan, "over a slow link")];
    let flags: Vec<&str> = flags.into_iter().filter_map(|(is, name)| is.then_some(name)).collect();
    if !flags.is_empty() {
        println!("faults   {}", flags.join(", "));
    }
    if !status.bricks.is_empty() {
        println!("\n{:<8} {:>10} {:>10}", "brick", "size MiB", "free MiB");
    }
    for brick in &status.bricks {
        let filled = if brick.filled { "  filled" } else { "" };
        println!("{:<8} {:>10} {:>10}{filled}", brick.name, brick.size >> 20, brick.free >> 20);
    }
    if !status.volumes.is_empty() {
        println!("\n{:<12} {:>7}  mount", "volume", "bricks");
    }
    for volume in &status.volumes {
        let bricks = format!("{}/{}", volume.alive, volume.bricks);
        let mount = match &volume.mount {
            Some(path) if volume.usable => path.display().to_string(),
            Some(path) => format!("{} (does not answer)", path.display()),
            None => "not mounted".into(),
        };
        println!("{:<12} {bricks:>7}  {mount}", volume.name);
    }
}
