"""Words a phone agent says that the lexicons lack and the letter-to-sound network gets wrong: mostly names.

In the lexicon's alphabet, lower-case keys. Found by reading what the network makes of the commonest US given names
and surnames; add to it what an operator's callers are called.
"""

from __future__ import annotations

OWN_WORDS: dict[str, str] = {
    word: phonemes
    for word, _, phonemes in (
        line.partition(" ")
        for line in """
aguilar ˈæɡəlˌɑɹ
ahmed ˈɑmɛd
aisha iˈiʃə
alejandro ˌɑləhˈɑndɹO
alvarado ˌælvəɹˈɑdO
alvarez ˈælvəɹˌɛz
andrea ˈændɹiə
antonio æntˈOniO
armstrong ˈɑɹmstɹˌɔŋ
castillo kæstˈiO
chavez ʃˈɑvɛz
chloe klˈOi
contreras kəntɹˈɛɹəs
cruz kɹˈuz
cunningham kˈʌnɪŋhˌæm
danielle dænjˈɛl
denise dənˈis
diaz dˈiæz
diego diˈAɡO
dominguez dəmˈɪŋɡɛz
espinoza ˌɛspənˈOzə
estrada ɛstɹˈɑdə
ethan ˈiθən
fatima fˈæɾəmə
ferguson fˈɜɹɡəsən
fiona fiˈOnə
garcia ɡɑɹsˈiə
gmail ʤˈimˌAl
gonzalez ɡənzˈɑlɛz
gutierrez ɡutjˈɛɹɛz
guzman ɡˈuzmən
hernandez hɜɹnˈændɛz
herrera həɹˈɛɹə
inc ˈɪŋk
jacqueline ʤˈækwəlɪn
javier hˌɑviˈɛɹ
jimenez hɪmˈɛnɛz
jorge hˈɔɹhA
jose hOzˈA
kathleen kæθlˈin
krzyzewski ʃəʃˈɛfski
kumar kumˈɑɹ
luis luˈis
margaret mˈɑɹɡɹət
maria məɹˈiə
mejia məhˈiə
michelle mɪʃˈɛl
mr mˈɪstəɹ
ms mˈɪz
munoz munjˈOz
nguyen wˈɪn
nicole nɪkˈOl
nunez nˈunjɛz
o'brien ObɹˈIən
obrien ObɹˈIən
offhook ˈɔfhˌʊk
ortiz ɔɹtˈiz
pamela pˈæmələ
pena pˈAnjə
perez pˈɛɹɛz
ramirez ɹəmˈɪɹɛz
reyes ɹˈAɛz
rodriguez ɹɑdɹˈiɡɛz
rojas ɹˈOhɑs
ruiz ɹuˈiz
saas sˈæs
salazar sˈæləzˌɑɹ
sanjay sˈænʤˌA
sean ʃˈɔn
siobhan ʃəvˈɔn
sophia sOfˈiə
st sˈAnt
torres tˈɔɹɛz
valdez vældˈɛz
vasquez vˈæskɛz
wifi wˈIfˌI
wojcik wˈOʤɪk
xavier zˈAvjəɹ
zhang ʤˈɑŋ
zoe zˈOi
""".strip().splitlines()
    )
}
