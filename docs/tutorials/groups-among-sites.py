# %% [markdown]
# # Are there groups among my sites?
#
# You have one table with rows of many sites (clinics, schools, shops), with columns of different kinds. Does one model
# fit all sites? If not, are there groups of sites, and which site is in which group? This tutorial goes from a CSV file
# to a report, and to predictions for a site that was not in the table.

# %% [markdown]
# ## A table
#
# The table of this tutorial is generated, so that the truth is known: forty clinics, the length of a stay in days, and
# four columns to predict it from. In every third clinic, age makes stays longer and the new treatment does not help.

# %%
import numpy as np
import pandas as pd

random = np.random.default_rng(7)
rows = 2400
clinic = random.integers(40, size=rows)
age = random.normal(60, 12, rows)
treatment = random.choice(["usual", "new"], rows)
admitted = pd.Timestamp("2024-01-01") + pd.to_timedelta(random.integers(0, 365, rows), unit="D")
second = clinic % 3 == 0
days = np.where(second, 0.15, 0.02) * (age - 60) - np.where(second, 0.0, 2.0) * (treatment == "new")
frame = pd.DataFrame(
    {
        "clinic": [f"clinic {number:02d}" for number in clinic],
        "age": age.round(1),
        "treatment": treatment,
        "admitted": admitted.strftime("%Y-%m-%d"),
        "note": [f"free text {number}" for number in range(rows)],
        "days": (8 + days + random.normal(0, 1, rows)).round(2),
    }
)
frame.loc[random.choice(rows, 60, replace=False), "age"] = np.nan  # some ages are missing
frame.to_csv("stays.csv", index=False)
print(frame.head())

# %% [markdown]
# ## Ask before you train
#
# `coterie diagnose` tells whether the clinics differ, in what, and whether the differences form groups. Clients send sums
# and small rows, and nothing is trained. The last line names the command to run next.

# %%
!coterie diagnose --table stays.csv --client clinic --target days

# %% [markdown]
# ## Train, in Python
#
# `from_table` reads the file, or a DataFrame. It reports how each column is used: the free text is
# dropped, missing ages are replaced and marked, the date becomes a number of days.

# %%
import warnings

import coterie

warnings.simplefilter("ignore", coterie.errors.ColumnWarning)  # about the columns that are dropped; listed here
data = coterie.from_table("stays.csv", client="clinic", target="days")
for note in data.column_notes:
    print(f"{note.column:10} {note.action:8} {note.detail}")

# %%
result = coterie.fit(data, "ifca", clusters=2, restarts=5, seed=0)
result

# %% [markdown]
# Is it worth it? The groups are compared with the models that you would use otherwise, on the same held-out rows.

# %%
print(*result.baselines().sentences(), sep="\n")

# %% [markdown]
# ## Which clinic is in which group, and how certain is that?

# %%
print(result.to_frame().head(6).to_string())

# %% [markdown]
# The truth is known here: every third clinic, starting with clinic 00, belongs to the second group.

# %%
found = [result.assignments[f"clinic {number:02d}"] for number in range(40)]
same = [cluster == found[0] for cluster in found]
print("clinics in the right group:", sum(a == (number % 3 == 0) for number, a in enumerate(same)), "of 40")

# %% [markdown]
# What distinguishes the groups, in words: the coefficients in which each differs clearly, in the units of the table.

# %%
for cluster, sentence in result.groups().sentences(result.coefficients()).items():
    print(f"cluster {cluster}: {sentence}")

# %% [markdown]
# ## A new clinic
#
# A few rows of a new clinic assign it to a group. Pass raw rows; the result encodes them like the table.

# %%
some = pd.DataFrame(
    {
        "age": [45, 80, 60, 75, 50, 66],
        "treatment": ["new", "new", "usual", "usual", "usual", "new"],
        "admitted": "2024-05-01",
        "days": [5.9, 10.8, 8.1, 10.4, 6.6, 8.9],
    }
)
patients = pd.DataFrame({"age": [40, 85], "treatment": ["new", "new"], "admitted": "2024-06-01"})
print("probability of each group:", result.certainty(some).round(3))
print("expected days:", result.predict(patients, support=some).round(1))

# %% [markdown]
# ## A report for others
#
# One HTML file that opens without a network: the decision first, then the groups, the clinics, and the costs.

# %%
print(coterie.write_report(result, "stays.html"))

# %% [markdown]
# Next: [How many clusters](../choosing-clusters.md) if you do not know their number,
# [The report](../report.md), and [Export](../export.md) of assignments and models.
