#!/usr/bin/env python3
"""Packages the extension as a .vsix: a zip of its files with the two manifests that VS Code reads.

package.py [OUT]; OUT is `nrl-VERSION.vsix` if left out. Needs nothing but Python; the same files give the same bytes.
"""

import json
import pathlib
import sys
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
FILES = [
    "package.json",
    "language-configuration.json",
    "extension.js",
    "client.js",
    "README.md",
    "syntaxes/nrl.tmLanguage.json",
]
TYPES = """<?xml version="1.0" encoding="utf-8"?>
<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">
  <Default Extension="json" ContentType="application/json"/>
  <Default Extension="js" ContentType="application/javascript"/>
  <Default Extension="md" ContentType="text/markdown"/>
  <Default Extension="vsixmanifest" ContentType="text/xml"/>
</Types>
"""
MANIFEST = """<?xml version="1.0" encoding="utf-8"?>
<PackageManifest Version="2.0.0" xmlns="http://schemas.microsoft.com/developer/vsx-schema/2011">
  <Metadata>
    <Identity Language="en-US" Id="{name}" Version="{version}" Publisher="{publisher}"/>
    <DisplayName>{displayName}</DisplayName>
    <Description xml:space="preserve">{description}</Description>
    <Categories>{categories}</Categories>
    <Properties>
      <Property Id="Microsoft.VisualStudio.Code.Engine" Value="{engine}"/>
    </Properties>
  </Metadata>
  <Installation><InstallationTarget Id="Microsoft.VisualStudio.Code"/></Installation>
  <Dependencies/>
  <Assets>
    <Asset Type="Microsoft.VisualStudio.Code.Manifest" Path="extension/package.json" Addressable="true"/>
    <Asset Type="Microsoft.VisualStudio.Services.Content.Details" Path="extension/README.md" Addressable="true"/>
  </Assets>
</PackageManifest>
"""


def main():
    about = json.loads((HERE / "package.json").read_text())
    manifest = MANIFEST.format(
        categories=",".join(about["categories"]), engine=about["engines"]["vscode"],
        **{k: about[k] for k in ["name", "version", "publisher", "displayName", "description"]},
    )
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else f"{about['name']}-{about['version']}.vsix")
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        def add(name, data):
            archive.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)

        add("[Content_Types].xml", TYPES)
        add("extension.vsixmanifest", manifest)
        for name in FILES:
            add(f"extension/{name}", (HERE / name).read_bytes())
    print(out)


main()
