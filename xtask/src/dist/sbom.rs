//! Bill of materials: CycloneDX 1.6 in JSON.

use anyhow::Result;
use serde_json::{Value, json};

use super::contents::{Contents, Crate};
use super::licences::canonical;

/// The document.
pub(super) fn document(contents: &Contents) -> Result<String> {
    let version = contents.version()?;
    let whole = "pkg:generic/fsstack";
    let reference = |id: &String| contents.crates.get(id).map(Crate::purl);
    let mut uses = vec![json!({
        "ref": whole,
        "dependsOn": contents.released.iter().filter_map(reference).collect::<Vec<_>>(),
    })];
    uses.extend(contents.crates.values().map(|one| {
        json!({"ref": one.purl(), "dependsOn": one.uses.iter().filter_map(reference).collect::<Vec<_>>()})
    }));
    let document = json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application", "bom-ref": whole, "name": "fsstack", "version": version,
                "licenses": [{"expression": "MIT OR Apache-2.0"}],
            },
        },
        "components": contents.crates.values().map(component).collect::<Vec<_>>(),
        "dependencies": uses,
    });
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

fn component(one: &Crate) -> Value {
    let mut report = json!({
        "type": "library", "bom-ref": one.purl(), "name": one.name, "version": one.version, "purl": one.purl(),
        "licenses": [{"expression": canonical(&one.licence)}],
    });
    if let Some(sum) = &one.sum {
        report["hashes"] = json!([{"alg": "SHA-256", "content": sum}]);
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_crate_is_named_with_what_it_uses() {
        let report: Value =
            serde_json::from_str(&document(&super::super::contents::sample()).unwrap()).unwrap();
        let names: Vec<&Value> =
            report["components"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
        assert_eq!(names, ["ours", "used"]);
        assert_eq!(report["components"][1]["hashes"][0]["content"], "abc");
        assert_eq!(
            report["dependencies"][1],
            json!({"ref": "pkg:cargo/ours@1.2.3", "dependsOn": ["pkg:cargo/used@1.2.3"]})
        );
    }
}
