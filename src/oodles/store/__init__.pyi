from .manifest import bad_rows as bad_rows
from .manifest import is_store as is_store
from .manifest import read_manifest as read_manifest
from .manifest import stored_rows as stored_rows
from .reading import Shard as Shard
from .reading import Store as Store
from .writing import Part as Part
from .writing import Writer as Writer
