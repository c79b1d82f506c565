from .explaining import explain as explain
from .findings import Explanation as Explanation
