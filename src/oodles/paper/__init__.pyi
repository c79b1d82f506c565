from . import analysis as analysis
