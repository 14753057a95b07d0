"""scikit-learn estimators: `ClusteredClassifier` and `ClusteredRegressor`, fitted with one group (site, client) a row.

::

    model = ClusteredClassifier(clusters=3).fit(X, y, groups=site)
    model.cluster_                          # {site: cluster}
    model.predict(X_new, groups=site_new)   # sites that trained predict by the model of their cluster

They work in pipelines and searches through scikit-learn's metadata routing (docs/sklearn.md).
"""

from coterie.sklearn.classifier import ClusteredClassifier
from coterie.sklearn.cluster_model import ClusterModel, estimator_of
from coterie.sklearn.regressor import ClusteredRegressor

__all__ = ["ClusterModel", "ClusteredClassifier", "ClusteredRegressor", "estimator_of"]
