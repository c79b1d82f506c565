from .opening import OpenGuard as OpenGuard
from .opening import open_guard as open_guard
from .scoring import explain_inputs as explain_inputs
from .scoring import score_files as score_files
from .scoring import score_inputs as score_inputs
