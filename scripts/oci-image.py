#!/usr/bin/env python3
"""Makes one OCI image of `docker save` archives, one for each architecture: scripts/oci-image.py NAME TO.tar SAVED.tar...

Prints the digest by which a registry will know the image, so the chart can name it before anything is pushed. The same archives always
make the same bytes. `skopeo copy --all --preserve-digests oci-archive:TO.tar docker://…` pushes the image. If there is one architecture,
`docker load` reads TO.tar, too.
"""

import gzip
import hashlib
import io
import json
import os
import sys
import tarfile

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


class Layout:
    """An OCI image layout in a tar archive."""

    def __init__(self, path):
        self.tar = tarfile.open(path, "w", format=tarfile.USTAR_FORMAT)
        self.written = set()

    def file(self, name, data):
        if name in self.written:
            return
        self.written.add(name)
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = len(data), 0o644
        self.tar.addfile(entry, io.BytesIO(data))

    def blob(self, kind, data, **more):
        """Adds a blob, and returns its descriptor."""
        digest = hashlib.sha256(data).hexdigest()
        self.file(f"blobs/sha256/{digest}", data)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)} | more


def to_json(value):
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def plain(data):
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def add(layout, saved):
    """Adds the image of an archive. Returns its descriptor, and its entry of `docker load`'s manifest."""
    with tarfile.open(saved) as tar:
        names = {os.path.normpath(entry.name): entry for entry in tar}

        def member(name):
            # it may be a link to a layer that docker wrote before
            return tar.extractfile(names[name]).read()

        images = json.loads(member("manifest.json"))
        if len(images) != 1:
            raise SystemExit(f"{saved} has {len(images)} images, not one")
        config_bytes = member(images[0]["Config"])
        config = json.loads(config_bytes)
        layers = []
        for name, expected in zip(images[0]["Layers"], config["rootfs"]["diff_ids"], strict=True):
            data = plain(member(name))
            found = "sha256:" + hashlib.sha256(data).hexdigest()
            if found != expected:
                raise SystemExit(f"{saved}: layer {name} is {found}, but the image has {expected}")
            # without a time, so that the bytes depend on the layer only
            layers.append(layout.blob(LAYER, gzip.compress(data, 6, mtime=0)))
    own = layout.blob(CONFIG, config_bytes)
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": own, "layers": layers}
    platform = {"architecture": config["architecture"], "os": config["os"]}
    if "variant" in config:
        platform["variant"] = config["variant"]
    loaded = {"Config": path(own), "Layers": [path(layer) for layer in layers]}
    return layout.blob(MANIFEST, to_json(manifest), platform=platform), loaded


def path(descriptor):
    return "blobs/" + descriptor["digest"].replace(":", "/")


def main(name, target, *archives):
    layout = Layout(target)
    layout.file("oci-layout", to_json({"imageLayoutVersion": "1.0.0"}))
    added = [add(layout, archive) for archive in archives]
    platforms = [to_json(descriptor["platform"]) for descriptor, _ in added]
    if len(set(platforms)) != len(platforms):
        raise SystemExit(f"several archives are of one architecture: {b', '.join(platforms).decode()}")
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [descriptor for descriptor, _ in added]}
    image = layout.blob(INDEX, to_json(index))
    tag = name.rpartition(":")[2]
    image["annotations"] = {"org.opencontainers.image.ref.name": tag}
    layout.file("index.json", to_json({"schemaVersion": 2, "mediaType": INDEX, "manifests": [image]}))
    if len(added) == 1:
        layout.file("manifest.json", to_json([added[0][1] | {"RepoTags": [name]}]))
    layout.tar.close()
    print(image["digest"])


if len(sys.argv) < 4:
    sys.exit(__doc__)
main(*sys.argv[1:])
